"""``legacy_workers: 0``: an engine whose hermes-agent runs in threads of this process."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio
import orjson

from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.legacy.in_process import load
from hermes_rl.legacy.pool import LegacyTools
from hermes_rl.legacy.settings import LegacySettings
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.testing.fake_sandbox import FakeBackend, FakeSandbox
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.leaks import leak_census
from hermes_rl.testing.loop_monitor import loop_monitor
from hermes_rl.tools import ToolDispatcher
from tests.integration.hermes_world import Services, titles


async def search(pool: LegacyTools, query: str, found: list[str]) -> None:
    rollout = pool.rollout()
    tools = ToolDispatcher(
        FakeSandbox(), ["web_search"], extra_tools=rollout.tools, on_close=rollout.aclose
    )
    result = await tools.call("web_search", orjson.dumps({"query": query}).decode(), "1")
    assert isinstance(result.content, str)
    found.append(result.content)
    await tools.aclose()


async def test_the_bound_holds_and_the_loop_is_never_blocked(world: Services, home: str) -> None:
    load(home)  # Or the census would find the files that the import opens for good.
    found: list[str] = []
    settings = LegacySettings(home=home, workers=0, threads=4)
    async with leak_census(), LegacyTools(settings) as pool:
        await search(pool, "warm up", [])
        # The interpreter lock is shared with the tools, but time is counted per thread.
        with loop_monitor(spikes=1):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(search, pool, f"sleep:0.1 number {number}", found)
    assert 2 <= world.busiest <= 4
    assert titles(found) == {f"number {number}": 1 for number in range(20)}


async def test_an_interrupt_never_hits_the_next_call_of_the_thread(
    world: Services, home: str
) -> None:
    one = LegacySettings(home=home, workers=0, threads=1)
    found: list[str] = []
    async with leak_census(), LegacyTools(one) as pool:
        async with anyio.create_task_group() as group:
            group.start_soon(search, pool, "sleep:1 cut", [])
            with anyio.fail_after(60):
                while not world.queries:
                    await anyio.sleep(0.01)
            group.cancel_scope.cancel()
        await search(pool, "a later one", found)
    assert titles(found) == {"later one": 1}
    assert world.busiest == 1


async def test_an_engine_offers_the_tools_of_this_process(home: str) -> None:
    config = EnvConfig(legacy_workers=0, legacy_home=home, tool_pool_size=2)
    turns = [call("web_search", {"query": "by the agent"})]
    async with RolloutEngine(
        config, model=ScriptedModel(replay(turns)), backend=FakeBackend()
    ) as engine:
        result = await engine.rollout(FakeTask())
    assert result.status == "finished", result.failure
    names = {tool["function"]["name"] for tool in result.tools}
    assert {"terminal", "web_search", "browser_navigate"} <= names
    assert not {"execute_code", "image_generate", "mine"} & names
    (text,) = (m["content"] for m in result.agent.messages if m["role"] == "tool")
    assert titles([text]) == {"the agent": 1}


def test_the_process_ends_within_five_seconds_of_the_close_with_calls_in_flight(
    run_script: Callable[[str], str], home: str, world: Services
) -> None:
    code = (
        "import time, anyio, orjson\n"
        "from hermes_rl.legacy.pool import LegacyTools\n"
        "from hermes_rl.legacy.settings import LegacySettings\n"
        "from hermes_rl.testing.fake_sandbox import FakeSandbox\n"
        "from hermes_rl.tools import ToolDispatcher\n"
        "async def main():\n"
        f"    settings = LegacySettings(home={home!r}, workers=0, threads=3)\n"
        "    async with LegacyTools(settings) as pool:\n"
        "        rollout = pool.rollout()\n"
        "        tools = ToolDispatcher(FakeSandbox(), ['web_search'], extra_tools=rollout.tools)\n"
        '        arguments = \'{"query": "sleep:60 long"}\'\n'
        "        async with anyio.create_task_group() as group:\n"
        "            for number in range(3):\n"
        "                group.start_soon(tools.call, 'web_search', arguments, str(number))\n"
        "            while pool.links == [] or pool.links[0].busy < 3:\n"
        "                await anyio.sleep(0.05)\n"
        "            await anyio.sleep(0.5)\n"
        "            group.cancel_scope.cancel()\n"
        "        print(time.time(), flush=True)\n"
        "anyio.run(main)\n"
    )
    began_to_close = float(run_script(code))
    assert time.time() - began_to_close < 5
    assert len(world.queries) == 3
    world.awake.set()
