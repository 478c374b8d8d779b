"""The engine on real local sandboxes: side by side, cut short, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from hermes_rl.config import EnvConfig
from hermes_rl.context import SyncToolContext, ToolContext
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import EngineClosed
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.rollout import RolloutResult
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.tasks import Deadlines
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.leaks import leak_census
from hermes_rl.types import AgentResult, StopReason
from tests.integration.evaluate_process import processes_with
from tests.integration.mixed_work import mixed_model, run_boxes

BOXES = 24


def engine_of(*commands: str, **config: object) -> RolloutEngine:
    turns = [call("terminal", {"command": command}) for command in commands]
    env = EnvConfig.model_validate({"terminal_backend": "local", **config})
    return RolloutEngine(env, model=ScriptedModel(replay(turns)))


async def test_many_boxes_with_twenty_calls_each_and_nothing_is_left() -> None:
    engine = RolloutEngine(EnvConfig(terminal_backend="local"), model=mixed_model())
    async with leak_census(), engine:
        results = await run_boxes(engine, BOXES, SandboxSpec())
    assert {r.agent.counters["tool_calls"] for r in results if r.agent} == {20}


def sleeping(name: str) -> str:
    """A command that can be found among all processes of the machine by its name."""
    return f"exec -a {name} sleep 300"


@pytest.mark.parametrize("ending", ["break", "exception", "close", "cancel"])
async def test_however_a_run_is_cut_short_no_process_is_left(ending: str, tmp_path: Path) -> None:
    name = f"{tmp_path.name}-{ending}"
    engine = engine_of(sleeping(name))
    todo = [FakeTask(id=f"box-{i}") for i in range(4)]
    async with leak_census():
        with anyio.CancelScope() as scope:
            try:
                async with engine, engine.run(todo, max_workers=4) as stream:
                    await until_running(name, 4)
                    if ending == "close":
                        await engine.aclose()
                        await anext(stream)
                    elif ending == "exception":
                        raise ZeroDivisionError
                    elif ending == "cancel":
                        scope.cancel()
                        await anyio.lowlevel.checkpoint()
            except EngineClosed:
                assert ending == "close"
            except ZeroDivisionError:
                assert ending == "exception"
        assert scope.cancelled_caught == (ending == "cancel")
        assert processes_with([name]) == []


async def until_running(name: str, count: int) -> None:
    for _ in range(600):
        if len(processes_with([name, "300"])) >= count:
            return
        await anyio.sleep(0.05)
    raise AssertionError(f"{count} processes called {name} did not start")


async def test_the_agents_server_lives_on_for_the_reward_and_no_longer(tmp_path: Path) -> None:
    name = f"server-{tmp_path.name}"
    seen: list[int] = []

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        seen.append(len(processes_with([name, "300"])))
        answer = await ctx.terminal("cat ~/started")
        return float(answer["output"].strip() == "yes")

    turns = [
        call("terminal", {"command": sleeping(name), "background": True}),
        call("terminal", {"command": f"(exec -a {name} sleep 300 &) ; echo yes > ~/started"}),
    ]
    engine = RolloutEngine(EnvConfig(terminal_backend="local"), model=ScriptedModel(replay(turns)))
    async with engine:
        result = await engine.rollout(FakeTask(reward=reward))
    assert result.score == 1.0
    assert seen == [2]
    assert processes_with([name, "300"]) == []


async def test_processes_can_be_killed_before_the_reward(tmp_path: Path) -> None:
    name = f"server-{tmp_path.name}"

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        return float(not processes_with([name, "300"]))

    engine = engine_of(f"(exec -a {name} sleep 300 &)", processes_at_reward="kill")
    async with engine:
        assert (await engine.rollout(FakeTask(reward=reward))).score == 1.0


async def test_the_agents_deadline_kills_its_command_and_the_reward_still_runs(
    tmp_path: Path,
) -> None:
    name = f"slow-{tmp_path.name}"

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        assert processes_with([name, "300"]) == []
        return float((await ctx.terminal("cat ~/before"))["output"].strip() == "1")

    task = FakeTask(reward=reward, deadlines=Deadlines(agent_s=1.0))
    async with engine_of("echo 1 > ~/before", sleeping(name)) as engine:
        result = await engine.rollout(task)
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.WALL_CLOCK
    assert result.agent.turns_used == 2
    assert (result.status, result.score) == ("finished", 1.0)


async def test_rollouts_side_by_side_never_see_each_other() -> None:
    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        return float((await ctx.terminal("ls -A ~ | wc -l"))["output"].strip() == "1")

    async with (
        engine_of("touch ~/only-mine", "ls ~") as engine,
        engine.run([FakeTask(id=f"t{i}", reward=reward) for i in range(8)]) as stream,
    ):
        scores = [result.score async for result in stream]
    assert scores == [1.0] * 8


async def test_the_blocking_context_works_on_a_real_sandbox(tmp_path: Path) -> None:
    def reward(result: AgentResult, ctx: SyncToolContext) -> float:
        test = ctx.terminal("grep -c . ~/numbers")
        ctx.download_file("~/numbers", str(tmp_path / "numbers"))
        return 1.0 if test["output"].strip() == "5" else 0.0

    async with engine_of("seq 5 > ~/numbers") as engine:
        result: RolloutResult = await engine.rollout(FakeTask(reward=reward))
    assert result.failure is None
    assert result.score == 1.0
    assert (tmp_path / "numbers").read_text() == "1\n2\n3\n4\n5\n"
