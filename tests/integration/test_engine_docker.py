"""The engine on real Docker sandboxes: side by side, cut short, and nothing left behind."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from hermes_rl.backends.ownership import RUN_LABEL
from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import EngineClosed
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.leaks import leak_census
from tests.integration.docker_boxes import box, containers_of
from tests.integration.mixed_work import mixed_model, run_boxes

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

BOXES = 12


def engine_of(model: ScriptedModel) -> RolloutEngine:
    return RolloutEngine(EnvConfig(terminal_backend="docker"), model=model)


async def test_twelve_boxes_with_twenty_calls_each_and_nothing_is_left() -> None:
    engine = engine_of(mixed_model())
    async with leak_census(container_label=f"{RUN_LABEL}={engine.run_id}"), engine:
        results = await run_boxes(engine, BOXES, box())
    assert {r.agent.counters["tool_calls"] for r in results if r.agent} == {20}


async def until_running(engine: RolloutEngine, count: int) -> None:
    for _ in range(600):
        if list(containers_of(engine.run_id).values()).count("running") >= count:
            return
        await anyio.sleep(0.1)
    raise AssertionError(f"{count} containers did not start")


@pytest.mark.parametrize("ending", ["break", "exception", "close", "cancel"])
async def test_however_a_run_is_cut_short_no_container_is_left(ending: str) -> None:
    sleeping = ScriptedModel(replay([call("terminal", {"command": "sleep 100"})]))
    engine = engine_of(sleeping)
    todo = [FakeTask(id=f"box-{i}", sandbox=box()) for i in range(4)]
    with anyio.CancelScope() as scope:
        try:
            async with engine, engine.run(todo, max_workers=4) as stream:
                await until_running(engine, 4)
                if ending == "close":
                    async with anyio.create_task_group() as group:
                        group.start_soon(engine.aclose)
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
    assert containers_of(engine.run_id) == {}
