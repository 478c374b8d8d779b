"""A task's ``setup``: runs in the sandbox before the agent, inside the setup phase."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.scripted import nop_model
from hermes_rl.tasks import Deadlines
from hermes_rl.testing.fake_sandbox import FakeBackend


class _Prepared:
    id = "prepared"
    prompt = "Look around."
    deadlines = Deadlines(setup_s=0.5)

    def __init__(self, *, awaits: bool = True, takes_s: float = 0.0) -> None:
        self._awaits = awaits
        self._takes_s = takes_s

    async def setup(self, ctx: Any) -> None:
        await anyio.sleep(self._takes_s)
        call = ctx.write_file("~/given.txt", "given")
        if self._awaits:
            await call

    async def reward(self, result: Any, ctx: Any) -> float:
        seen = await ctx.read_file("~/given.txt")
        return 1.0 if seen.get("content") == "given" else 0.0


async def outcome(task: _Prepared) -> Any:
    config = EnvConfig(rollout_retries=0)
    async with RolloutEngine(config, model=nop_model(), backend=FakeBackend()) as engine:
        return await engine.rollout(task)


async def test_what_setup_writes_is_there_for_agent_and_reward() -> None:
    assert (await outcome(_Prepared())).score == 1.0


async def test_a_setup_that_takes_too_long_is_an_error_of_the_setup_phase() -> None:
    result = await outcome(_Prepared(takes_s=30))
    assert result.status == "errored"
    assert result.failure.phase == "setup"
    assert "longer than 0.5 s" in result.failure.message


async def test_a_forgotten_await_in_setup_is_an_error_that_names_the_line() -> None:
    result = await outcome(_Prepared(awaits=False))
    assert result.status == "errored"
    assert "test_task_setup.py" in result.failure.message


class _Exits(_Prepared):
    async def setup(self, ctx: Any) -> None:
        raise SystemExit(9)


class _ExitsInATaskGroup(_Prepared):
    async def setup(self, ctx: Any) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
            raise SystemExit(9)


@pytest.mark.parametrize("kind", [_Exits, _ExitsInATaskGroup])
async def test_a_setup_that_exits_ends_its_rollout_only(kind: type[_Prepared]) -> None:
    result = await outcome(kind())
    assert result.status == "errored"
    assert (result.failure.kind, result.failure.phase) == ("TaskError", "setup")
    assert result.failure.message == "The setup code called sys.exit(9)."
