"""hermes-agent's real tools, in worker processes beside an engine."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import orjson
import pytest

from hermes_rl.config import EnvConfig
from hermes_rl.context import ToolContext
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import ConfigError, ToolFault
from hermes_rl.legacy.catalog import ask, ask_blocking
from hermes_rl.legacy.pool import LegacyRollout, LegacyTools
from hermes_rl.legacy.safety import BY_NAME, OFFERED, REFUSED
from hermes_rl.legacy.settings import LegacySettings
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.testing.fake_sandbox import FakeBackend, FakeSandbox
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.leaks import leak_census
from hermes_rl.testing.loop_monitor import loop_monitor
from hermes_rl.tools import NATIVE_TOOLS, ToolDispatcher

from .hermes_world import (
    PUBLIC,
    Services,
    environment,
    hermes_home,
    parent,
    processes,
    services,
    titles,
)

pytestmark = pytest.mark.timeout(600)  # The first test of a host builds an environment.

DAEMON = "86397"
"""Stands in the command line of the browser's background process."""
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


@pytest.fixture(scope="module")
def world() -> Iterator[Services]:
    with services() as made:
        yield made


@pytest.fixture(autouse=True)
def reachable(world: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(world).items():
        monkeypatch.setenv(name, value)
    world.busiest = 0
    world.queries.clear()
    world.awake.clear()


@pytest.fixture(scope="module")
def home(world: Services, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(hermes_home(tmp_path_factory.mktemp("hermes"), world))


@pytest.fixture
def settings(hermes_python: str, home: str) -> LegacySettings:
    return LegacySettings(python=hermes_python, home=home, workers=1, threads=8)


def changed(settings: LegacySettings, **fields: int) -> LegacySettings:
    return replace(settings, **fields)


class Rollout:
    """One rollout's tools on a sandbox of its own."""

    def __init__(self, pool: LegacyTools) -> None:
        self.legacy: LegacyRollout = pool.rollout()
        self.sandbox = FakeSandbox()
        self.tools = ToolDispatcher(
            self.sandbox,
            sorted(OFFERED),
            extra_tools=self.legacy.tools,
            on_close=self.legacy.aclose,
        )

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        text = await self.text(tool, **arguments)
        return json.loads(text)

    async def text(self, tool: str, **arguments: Any) -> str:
        result = await self.tools.call(tool, orjson.dumps(arguments).decode(), "call-1")
        assert isinstance(result.content, str)
        return result.content


@asynccontextmanager
async def opened(settings: LegacySettings) -> AsyncIterator[LegacyTools]:
    async with leak_census():
        async with LegacyTools(settings) as pool:
            yield pool
        assert processes("in_worker") == []


async def test_the_catalog_knows_what_is_there_and_what_the_rest_needs(
    settings: LegacySettings,
) -> None:
    async with leak_census():
        catalog = await ask(settings)
    assert catalog.version == "0.19.0"
    found = set(catalog.schemas)
    assert found >= {"web_search", "web_extract", "skills_list", "browser_navigate"}
    assert found <= OFFERED | BY_NAME.keys()
    assert catalog.toolsets == {}
    assert "XAI_API_KEY" in catalog.requirements["x_search"]
    assert ask_blocking(settings) == catalog
    assert processes("in_worker") == []


async def test_without_skills_there_are_no_tools_for_them(hermes_python: str) -> None:
    catalog = await ask(LegacySettings(python=hermes_python))
    assert not {"skills_list", "skill_view"} & set(catalog.schemas)
    assert "legacy_home" in catalog.availability.why_not(["skills_list", "skill_view"])


async def test_every_tool_of_hermes_agent_is_in_a_table(hermes_python: str) -> None:
    code = "import model_tools; print(*model_tools.get_all_tool_names())"
    done = await anyio.run_process([hermes_python, "-c", code])
    registered = set(done.stdout.decode().splitlines()[-1].split())
    assert registered == OFFERED | BY_NAME.keys() | REFUSED.keys() | NATIVE_TOOLS.keys()


async def test_tools_that_only_look_work(settings: LegacySettings, world: Services) -> None:
    world.pages[f"{PUBLIC}/a"] = "a long page " * 20_000
    async with opened(settings) as pool:
        rollout = Rollout(pool)
        found = await rollout.text("web_search", query="find me")
        assert titles([found]) == {"me": 1}
        page = (await rollout("web_extract", urls=[f"{PUBLIC}/a"]))["results"][0]["content"]
        assert page.startswith("a long page")
        (copy,) = rollout.sandbox.files
        assert f'read_file path="{copy}"' in page
        assert len(rollout.sandbox.files[copy]) == len(world.pages[f"{PUBLIC}/a"])
        skills = (await rollout("skills_list"))["skills"]
        assert [skill["name"] for skill in skills] == ["greeting"]
        assert "well met" in (await rollout("skill_view", name="greeting"))["content"]
        assert "error" in await rollout("skill_view", name="../../config.yaml")


async def test_pictures_are_those_of_the_sandbox(settings: LegacySettings, world: Services) -> None:
    world.images.clear()
    async with opened(settings) as pool:
        rollout = Rollout(pool)
        rollout.sandbox.files["/root/plot.png"] = PIXEL
        seen = await rollout("vision_analyze", image_url="plot.png", question="What is it?")
        assert seen["analysis"] == "image number 1"
        assert world.images[0].startswith("data:image/png;base64,iVBORw0KGgo")
        missing = await rollout("vision_analyze", image_url="/etc/passwd", question="?")
        assert missing == {"error": "/etc/passwd does not exist."}
        assert len(world.images) == 1


async def test_two_rollouts_have_two_browsers_and_none_is_left(settings: LegacySettings) -> None:
    async with opened(changed(settings, workers=2)) as pool:
        rollouts = [Rollout(pool) for _ in range(6)]

        async def browse(number: int) -> None:
            await rollouts[number]("browser_navigate", url=f"{PUBLIC}/{number}")

        async with anyio.create_task_group() as group:
            for number in range(6):
                group.start_soon(browse, number)
        assert len(processes(DAEMON)) == 6
        for number, rollout in enumerate(rollouts):
            shown = (await rollout("browser_snapshot"))["snapshot"]
            assert shown == f"- page {PUBLIC}/{number}"
        await rollouts[0].tools.aclose()
        assert len(processes(DAEMON)) == 5
        assert (await rollouts[1]("browser_snapshot"))["snapshot"] == f"- page {PUBLIC}/1"
        fresh = Rollout(pool)
        assert (await fresh("browser_snapshot"))["snapshot"] == "- page nothing"
    assert processes(DAEMON) == []


async def test_the_browser_does_not_reach_this_machine(settings: LegacySettings) -> None:
    async with opened(settings) as pool:
        rollout = Rollout(pool)
        for url in ("http://127.0.0.1:1/", "http://169.254.169.254/", "http://[::1]/"):
            answer = await rollout("browser_navigate", url=url)
            assert answer["error"].startswith("Blocked")
        assert processes(DAEMON) == []


async def test_forty_rollouts_keep_the_bound_and_never_block_the_loop(
    settings: LegacySettings, world: Services
) -> None:
    results: dict[int, list[str]] = {}

    async def run(pool: LegacyTools, number: int) -> None:
        rollout = Rollout(pool)
        results[number] = [
            await rollout.text("web_search", query=f"sleep:0.2 rollout {number} call {index}")
            for index in range(2)
        ]
        await rollout.tools.aclose()

    async with opened(changed(settings, workers=2)) as pool:
        with loop_monitor(spikes=1):
            async with anyio.create_task_group() as group:
                for number in range(40):
                    group.start_soon(run, pool, number)
        assert [link.busy for link in pool.links] == [0, 0]
    assert settings.threads / 2 <= world.busiest <= settings.threads
    assert len(world.queries) == 80
    for number, texts in results.items():
        assert titles(texts) == {f"rollout {number} call {index}": 1 for index in range(2)}


async def test_a_cancelled_rollout_keeps_its_thread_until_the_tool_returns_and_disturbs_nobody(
    settings: LegacySettings, world: Services
) -> None:
    async with opened(changed(settings, threads=2)) as pool:
        other, cut = Rollout(pool), Rollout(pool)
        found: list[str] = []

        async def stay() -> None:
            found.append(await other.text("web_search", query="sleep:2 the other"))

        async def be_cut() -> None:
            await cut.text("web_search", query="sleep:1 the cut one")

        async with anyio.create_task_group() as group:
            group.start_soon(stay)
            await _until(lambda: len(world.queries) == 1)
            async with anyio.create_task_group() as inner:
                inner.start_soon(be_cut)
                await _until(lambda: len(world.queries) == 2)
                began = anyio.current_time()
                inner.cancel_scope.cancel()
            assert anyio.current_time() - began < 0.5  # The caller is free at once ...
            (link,) = pool.links
            assert link.busy == 2  # ... the thread is not.
            # The next call waits for that thread, and is not hit by the interrupt of the last.
            late = await cut.text("web_search", query="a later call")
            assert titles([late]) == {"later call": 1}
            assert anyio.current_time() - began > 0.5
        assert titles(found) == {"the other": 1}
        assert world.busiest == 2


async def _until(holds: Any, within_s: float = 60.0) -> None:
    with anyio.fail_after(within_s):
        while not holds():
            await anyio.sleep(0.01)


async def test_closing_takes_less_than_five_seconds_with_calls_in_flight(
    settings: LegacySettings, world: Services
) -> None:
    async with leak_census():
        async with LegacyTools(settings) as pool:
            rollouts = [Rollout(pool) for _ in range(4)]
            await rollouts[0]("browser_navigate", url=f"{PUBLIC}/")
            async with anyio.create_task_group() as group:
                for rollout in rollouts:
                    group.start_soon(rollout.text, "web_search")  # An argument is missing.
                    group.start_soon(_search, rollout, "sleep:60 long")
                await _until(lambda: len(world.queries) == 4)
                group.cancel_scope.cancel()
            began = anyio.current_time()
        took_s = anyio.current_time() - began
        assert took_s < 5
        assert processes("in_worker") == processes(DAEMON) == []
        world.awake.set()


async def _search(rollout: Rollout, query: str) -> None:
    await rollout.text("web_search", query=query)


async def test_a_worker_that_dies_is_replaced_and_its_calls_are_faults_to_be_retried(
    settings: LegacySettings, world: Services
) -> None:
    async with opened(settings) as pool:
        lost = Rollout(pool)
        await lost("browser_navigate", url=f"{PUBLIC}/")
        faults: list[ToolFault] = []

        async def search() -> None:
            try:
                await lost.text("web_search", query="sleep:60 never")
            except ToolFault as error:
                faults.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(search)
            await _until(lambda: len(world.queries) == 1)
            keeper_and_worker = processes("in_worker")
            for pid in keeper_and_worker:
                if parent(pid) in keeper_and_worker:
                    os.kill(pid, signal.SIGKILL)
        world.awake.set()
        assert [fault.retryable for fault in faults] == [True]
        assert processes(DAEMON) == []  # The keeper has swept up.
        with pytest.raises(ToolFault):
            await lost.text("web_search", query="its browser is gone")
        await lost.tools.aclose()
        assert titles([await Rollout(pool).text("web_search", query="a fresh one")]) == {
            "fresh one": 1
        }


async def test_an_interpreter_without_hermes_agent_is_an_error_at_the_first_call() -> None:
    async with opened(LegacySettings(python=sys.executable, workers=1, threads=1)) as pool:
        with pytest.raises(ConfigError, match="not installed there"):
            await Rollout(pool).text("web_search", query="x")


async def test_agents_and_reward_code_reach_the_tools_and_the_rollouts_state(
    hermes_python: str, home: str
) -> None:
    seen: dict[str, Any] = {}

    async def reward(result: Any, ctx: ToolContext) -> float:
        seen["snapshot"] = await ctx.browser_snapshot()
        seen["search"] = await ctx.web_search("by the reward")
        seen["extract"] = await ctx.web_extract([f"{PUBLIC}/nothing"])
        seen["navigate"] = await ctx.browser_navigate("file:///etc/passwd")
        seen["skill"] = json.loads(await ctx.call_tool("skill_view", {"name": "greeting"}))
        return 1.0

    turns = [
        call("web_search", {"query": "by the agent"}),
        call("browser_navigate", {"url": f"{PUBLIC}/page"}),
    ]
    config = EnvConfig(
        enabled_toolsets=["terminal", "browser"], legacy_python=hermes_python, legacy_home=home
    )
    async with leak_census():
        async with RolloutEngine(
            config, model=ScriptedModel(replay(turns)), backend=FakeBackend()
        ) as engine:
            result = await engine.rollout(FakeTask(reward=reward))
        assert processes(DAEMON) == []
    assert result.status == "finished", result.failure
    assert {"web_search", "browser_navigate", "terminal"} <= {
        tool["function"]["name"] for tool in result.tools
    }
    assert "skill_view" not in {tool["function"]["name"] for tool in result.tools}
    assert result.agent is not None
    assert result.agent.tool_errors == []
    assert seen["snapshot"]["snapshot"] == f"- page {PUBLIC}/page"
    assert seen["search"]["data"]["web"][0]["title"] == "the reward"
    assert "results" in seen["extract"]
    assert "http" in seen["navigate"]["error"]
    assert seen["skill"]["success"] is True


async def test_reward_code_reaches_tools_that_no_agent_was_given(
    hermes_python: str, home: str
) -> None:
    async def reward(result: Any, ctx: ToolContext) -> float:
        found = await ctx.web_search("one more")
        return float(found["data"]["web"][0]["title"] == "more")

    config = EnvConfig(enabled_toolsets=["terminal"], legacy_python=hermes_python, legacy_home=home)
    async with (
        leak_census(),
        RolloutEngine(config, model=ScriptedModel(replay([])), backend=FakeBackend()) as engine,
    ):
        result = await engine.rollout(FakeTask(reward=reward))
    assert result.score == 1.0, result.failure


async def test_an_engine_that_calls_no_such_tool_starts_no_worker(hermes_python: str) -> None:
    config = EnvConfig(enabled_toolsets=["terminal"], legacy_python=hermes_python)
    async with RolloutEngine(
        config, model=ScriptedModel(replay([])), backend=FakeBackend()
    ) as engine:
        await engine.rollout(FakeTask())
        assert processes("in_worker") == []


async def test_a_refused_toolset_is_refused_before_anything_starts(hermes_python: str) -> None:
    config = EnvConfig(enabled_toolsets=["code_execution"], legacy_python=hermes_python)
    engine = RolloutEngine(config, model=ScriptedModel(replay([])), backend=FakeBackend())
    with pytest.raises(ConfigError, match="use terminal, which runs in the sandbox"):
        await engine.__aenter__()


async def test_the_first_calls_of_many_rollouts_start_each_worker_once(
    settings: LegacySettings,
) -> None:
    async with opened(changed(settings, workers=2)) as pool:
        rollouts = [Rollout(pool) for _ in range(10)]
        started_s = time.monotonic()
        async with anyio.create_task_group() as group:
            for rollout in rollouts:
                group.start_soon(rollout.text, "web_search")
        assert len(pool.links) == 2
        assert time.monotonic() - started_s < 60
