"""A backend of another package that breaks: errors that name it, and the run goes on."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import BackendUnavailable, SandboxError
from hermes_rl.model.scripted import ScriptedModel, call, replay, say
from hermes_rl.rollout import RolloutResult
from hermes_rl.testing.fake_sandbox import FakeBackend, FakeSandbox
from hermes_rl.testing.fake_tasks import FakeTask

MODEL = ScriptedModel(replay([call("terminal", {"command": "ls"}), say("done")]))
BROKEN: list[Callable[[], BaseException]] = [lambda: KeyError("planted"), lambda: SystemExit(3)]


def _raising(make: Callable[[], BaseException]) -> Callable[..., Any]:
    async def method(*_: Any, **__: Any) -> None:
        raise make()

    return method


def _engine(backend: FakeBackend) -> RolloutEngine:
    return RolloutEngine(EnvConfig(), model=MODEL, backend=backend)


async def _results(backend: FakeBackend) -> list[RolloutResult]:
    tasks = [FakeTask(id=f"task-{number}") for number in range(3)]
    async with _engine(backend) as engine, engine.run(tasks) as results:
        return [result async for result in results]


@pytest.mark.parametrize("make", BROKEN, ids=["raises", "exits"])
@pytest.mark.parametrize("method", ["__aenter__", "__aexit__"])
async def test_a_backend_that_breaks_at_either_end_is_named(
    method: str, make: Callable[[], BaseException]
) -> None:
    backend = type("Mine", (FakeBackend,), {"name": "mine", method: _raising(make)})()
    with pytest.raises(SandboxError, match="The backend 'mine' broke while it") as caught:
        async with _engine(backend):
            pass
    assert __file__ in str(caught.value)


async def test_an_error_of_ours_inside_a_group_keeps_its_kind() -> None:
    async def fail(_: Any) -> None:
        async def connect() -> None:
            raise BackendUnavailable("No daemon. Start it.")

        async with anyio.create_task_group() as group:
            group.start_soon(connect)

    backend = type("Mine", (FakeBackend,), {"__aenter__": fail})()
    with pytest.raises(BackendUnavailable, match="Start it"):
        async with _engine(backend):
            pass


async def test_a_backend_without_capabilities_is_named() -> None:
    backend = FakeBackend()
    del backend.capabilities
    with pytest.raises(SandboxError, match=r"'fake' broke .*no attribute 'capabilities'"):
        async with _engine(backend):
            pass


@pytest.mark.parametrize("make", BROKEN, ids=["raises", "exits"])
async def test_a_create_that_breaks_costs_its_rollouts_only(
    make: Callable[[], BaseException],
) -> None:
    def fragile(_: Any) -> FakeSandbox:
        if len(backend.specs) == 2:
            raise make()
        return FakeSandbox()

    backend = FakeBackend(fragile)
    results = await _results(backend)
    assert sorted(result.status for result in results) == ["errored", "finished", "finished"]
    (failure,) = [result.failure for result in results if result.failure]
    assert failure.kind == "CreateError"
    assert f"The backend 'fake' broke in create(): {type(make()).__name__}: " in failure.message
    assert __file__ in failure.message


async def test_a_create_that_returns_no_sandbox_is_named() -> None:
    async def create(*_: Any) -> None:
        return None

    results = await _results(type("Mine", (FakeBackend,), {"create": create})())
    failures = {result.failure.message for result in results if result.failure}
    assert failures == {
        "The backend 'fake' broke: create() returned a NoneType, which lacks capabilities, exec, "
        "read, write, close."
    }


@pytest.mark.parametrize("make", BROKEN, ids=["raises", "exits"])
async def test_an_exec_that_breaks_is_a_fault_of_ours_with_its_place(
    make: Callable[[], BaseException],
) -> None:
    results = await _results(FakeBackend(lambda _: FakeSandbox(run=_raising(make))))
    for result in results:
        assert result.status == "errored"
        assert result.failure is not None
        assert result.failure.kind == "ToolFault"
        assert __file__ in result.failure.message


@pytest.mark.parametrize("make", BROKEN, ids=["raises", "exits"])
async def test_a_close_that_breaks_keeps_the_score_and_is_named(
    make: Callable[[], BaseException],
) -> None:
    async def close(self: FakeSandbox) -> None:
        self.closed += 1
        raise make()

    sandboxes = type("Unclosable", (FakeSandbox,), {"close": close})
    results = await _results(FakeBackend(lambda _: sandboxes()))
    for result in results:
        assert result.status == "finished"
        assert result.failure is not None
        assert result.failure.phase == "teardown"
        assert "'fake' broke while it closed a sandbox" in result.failure.message
