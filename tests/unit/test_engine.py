"""The engine: many rollouts, limits, and that nothing is left however it ends."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel
import pytest

from hermes_rl.config import AgentFields, EnvConfig, ServerConfig
from hermes_rl.context import ToolContext
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    EngineClosed,
    ModelUnauthorized,
    SandboxError,
    TaskError,
    UnknownName,
)
from hermes_rl.model.protocol import Sampling
from hermes_rl.model.scripted import ScriptedModel, Turn, call, replay, say
from hermes_rl.rollout import RolloutResult
from hermes_rl.sandbox import ExecResult, SandboxSpec
from hermes_rl.testing.fake_sandbox import FakeBackend, FakeSandbox
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.leaks import leak_census
from hermes_rl.testing.loop_monitor import loop_monitor, run_without_long_callbacks
from hermes_rl.types import AgentResult, JSONObject, Message

LIST_FILES = call("terminal", {"command": "ls"})


def engine_of(
    backend: FakeBackend | None = None, model: Any = None, **config: Any
) -> RolloutEngine:
    return RolloutEngine(
        EnvConfig(**config),
        model=model or ScriptedModel(replay([LIST_FILES] * 3)),
        backend=backend or FakeBackend(),
        retry_delay_s=0.0,
    )


def tasks(count: int, **attributes: Any) -> list[FakeTask]:
    return [FakeTask(id=f"task-{i}", **attributes) for i in range(count)]


def hanging_backend() -> FakeBackend:
    async def hang(_: object) -> ExecResult:
        await anyio.sleep_forever()
        raise AssertionError

    return FakeBackend(lambda spec: FakeSandbox(run=hang))


async def until(condition: Any) -> None:
    """Wait, some steps of the loop at most, for something that needs no time."""
    for _ in range(10_000):
        if condition():
            return
        await anyio.lowlevel.checkpoint()
    raise AssertionError("it never came true")


def busy(backend: FakeBackend, count: int) -> Any:
    return lambda: sum(bool(sandbox.commands) for sandbox in backend.alive) == count


# Many rollouts ----------------------------------------------------------------------------------


async def test_every_task_is_run_as_often_as_asked_and_every_task_once_first() -> None:
    async with (
        engine_of() as engine,
        engine.run(tasks(3), attempts=2, max_workers=1, skip={("task-1", 1)}) as results,
    ):
        seen = [(result.task_id, result.attempt) async for result in results]
    assert seen == [("task-0", 0), ("task-1", 0), ("task-2", 0), ("task-0", 1), ("task-2", 1)]


async def test_three_hundred_rollouts_at_once_block_nothing_and_leave_nothing() -> None:
    backend = FakeBackend()

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        answers = [m for m in result.messages if m["role"] == "tool"]
        assert all('"exit_code":0' in answer["content"] for answer in answers)
        return float(len(answers) == 3)

    with loop_monitor(spikes=1):
        async with (
            leak_census(),
            engine_of(backend, max_running_sandboxes=300) as engine,
            engine.run(tasks(300, reward=reward), max_workers=300) as results,
        ):
            scores = [result.score async for result in results]
    assert scores == [1.0] * 300
    assert backend.alive == []


async def test_ten_thousand_tasks_start_without_blocking_the_loop() -> None:
    many = tasks(10_000)

    async def start() -> None:
        backend = hanging_backend()
        async with engine_of(backend) as engine, engine.run(many, max_workers=2):
            await until(busy(backend, 2))
        assert backend.alive == []

    await run_without_long_callbacks(start)


async def test_no_more_sandboxes_exist_at_once_than_allowed() -> None:
    most = 0

    def make(spec: SandboxSpec) -> FakeSandbox:
        nonlocal most
        most = max(most, len(backend.alive) + 1)
        return FakeSandbox()

    backend = FakeBackend(make)
    async with (
        engine_of(backend, max_running_sandboxes=5) as engine,
        engine.run(tasks(40), max_workers=40) as results,
    ):
        assert len([result async for result in results]) == 40
    assert most == 5


async def test_workers_bound_the_rollouts_of_a_stream() -> None:
    backend = hanging_backend()
    async with engine_of(backend, max_eval_workers=3) as engine, engine.run(tasks(10)):
        await until(busy(backend, 3))
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert len(backend.created) == 3


async def test_a_slow_reader_slows_the_workers_down() -> None:
    backend = FakeBackend()
    async with engine_of(backend) as engine, engine.run(tasks(100), max_workers=4) as results:
        for taken in range(5):
            for _ in range(300):
                await anyio.lowlevel.checkpoint()
            assert len(backend.created) == 8 + taken
            await anext(results)


async def test_memory_is_for_what_runs_not_for_what_is_done() -> None:
    alive: list[int] = []
    async with engine_of() as engine, engine.run(tasks(300), max_workers=4) as results:
        seen = 0
        async for _ in results:
            seen += 1
            if seen % 75 == 0:
                gc.collect()
                alive.append(sum(type(each) is AgentResult for each in gc.get_objects()))
    assert seen == 300
    assert max(alive) <= 2 * 4 + 1


async def test_a_failing_rollout_does_not_disturb_its_siblings() -> None:
    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        raise RuntimeError("bug")

    mixed = [FakeTask(id=f"bad-{i}", reward=reward) for i in range(5)] + tasks(5)
    async with engine_of() as engine, engine.run(mixed, max_workers=10) as results:
        statuses = Counter([result.status async for result in results])
    assert statuses == {"errored": 5, "finished": 5}


async def test_an_error_that_stops_the_run_comes_after_the_finished_results() -> None:
    def script(messages: Sequence[Message]) -> Turn:
        if messages[0]["content"] == "bad key":
            raise ModelUnauthorized("401 from http://x: check the API key", status=401)
        return say("done")

    backend = FakeBackend()
    todo = [*tasks(3), FakeTask(id="bad", prompt="bad key"), *[FakeTask(id="late")]]
    seen: list[str] = []

    async def read_all() -> None:
        async with engine.run(todo, max_workers=1) as results:
            async for result in results:
                seen.append(result.task_id)  # noqa: PERF401 - kept although the loop raises

    async with engine_of(backend, ScriptedModel(script)) as engine:
        with pytest.raises(ModelUnauthorized, match="check the API key"):
            await read_all()
        assert (await engine.rollout(FakeTask())).status == "finished"
    assert seen == ["task-0", "task-1", "task-2"]
    assert backend.alive == []


async def test_malformed_runs_are_refused_before_anything_starts() -> None:
    backend = FakeBackend()

    async def enter(*todo: FakeTask) -> None:
        async with engine.run(todo):
            raise AssertionError

    async with engine_of(backend, terminal_lifetime=10) as engine:
        with pytest.raises(TaskError, match="occur more than once"):
            await enter(FakeTask(), FakeTask())
        with pytest.raises(ConfigError, match="terminal_lifetime"):
            await enter(FakeTask())
        with pytest.raises(ConfigError, match="terminal_lifetime"):
            await engine.rollout(FakeTask())
        with pytest.raises(ConfigError, match="terminal_lifetime"):
            engine.start(FakeTask(), tool_names=["todo"])
        with pytest.raises(TaskError, match="no prompt"):
            engine.start(FakeTask(prompt=""))
    assert backend.specs == []


async def test_fewer_than_one_worker_or_attempt_is_refused() -> None:
    async with engine_of() as engine:
        with pytest.raises(ConfigError, match="at least 1"):
            engine.run(tasks(1), attempts=0)
        with pytest.raises(ConfigError, match="at least 1"):
            engine.run(tasks(1), max_workers=0)


async def test_no_tasks_are_no_results() -> None:
    async with engine_of() as engine, engine.run([]) as results:
        assert [result async for result in results] == []


async def test_a_stream_that_was_not_entered_says_so() -> None:
    async with engine_of() as engine:
        with pytest.raises(ConfigError, match=r"async with engine\.run"):
            await anext(engine.run(tasks(1)))


# One rollout ------------------------------------------------------------------------------------


async def test_a_handle_gives_the_result_to_all_who_wait() -> None:
    async with engine_of() as engine:
        handle = engine.start(FakeTask())
        first, second = await handle.result(), await handle.result()
        assert first is second
        assert first.status == "finished"
        assert handle.is_done


async def test_a_handle_cancels_its_rollout_only() -> None:
    backend = hanging_backend()
    async with engine_of(backend) as engine:
        handles = [engine.start(task) for task in tasks(3)]
        await until(busy(backend, 3))
        handles[1].cancel()
        assert (await handles[1].result()).status == "cancelled"
        assert len(backend.alive) == 2


async def test_cancelling_the_wait_for_a_handle_does_not_cancel_the_rollout() -> None:
    backend = hanging_backend()
    async with engine_of(backend) as engine:
        handle = engine.start(FakeTask())
        with anyio.move_on_after(0.02):
            await handle.result()
        assert not handle.is_done
        await until(busy(backend, 1))


async def test_cancelling_rollout_tears_it_down_before_it_returns() -> None:
    backend = hanging_backend()
    async with engine_of(backend) as engine:
        with anyio.move_on_after(0.02) as scope:
            await engine.rollout(FakeTask())
        assert scope.cancelled_caught
        assert [sandbox.closed for sandbox in backend.created] == [1]


async def test_reward_code_may_run_rollouts_of_its_own() -> None:
    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        inner = await engine.rollout(FakeTask(id="inner"))
        return inner.score / 2

    async with engine_of() as engine:
        assert (await engine.rollout(FakeTask(reward=reward))).score == 0.5


async def test_tools_can_be_given_for_one_rollout() -> None:
    async with engine_of() as engine:
        result = await engine.start(FakeTask(), tool_names=["todo"]).result()
    assert [tool["function"]["name"] for tool in result.tools] == ["todo"]
    assert result.agent is not None
    assert result.agent.counters["unknown_tools"] == 3


# Leaving early ----------------------------------------------------------------------------------


async def test_break_leaves_nothing_running() -> None:
    backend = FakeBackend()
    async with leak_census(), engine_of(backend) as engine:
        async with engine.run(tasks(50), max_workers=10) as results:
            async for _ in results:
                break
        assert backend.alive == []
        created = len(backend.created)
        await anyio.sleep(0.01)
        assert len(backend.created) == created < 50


async def test_an_exception_in_the_body_leaves_nothing_running_and_comes_out_as_it_was() -> None:
    backend = hanging_backend()

    async def fail_in_the_middle() -> None:
        async with engine_of(backend) as engine, engine.run(tasks(10), max_workers=10):
            await until(busy(backend, 10))
            raise ZeroDivisionError

    async with leak_census():
        with pytest.raises(ZeroDivisionError):
            await fail_in_the_middle()
    assert len(backend.created) == 10
    assert backend.alive == []


async def test_leaving_the_engine_tears_down_started_rollouts() -> None:
    backend = hanging_backend()
    async with engine_of(backend) as engine:
        handle = engine.start(FakeTask())
        await until(busy(backend, 1))
    assert backend.alive == []
    with pytest.raises(EngineClosed):
        await handle.result()


async def test_cancelling_the_task_that_holds_the_engine_leaves_nothing() -> None:
    backend = hanging_backend()
    async with leak_census():
        with anyio.move_on_after(0.05) as scope:
            async with engine_of(backend) as engine, engine.run(tasks(10)) as results:
                async for _ in results:
                    pass
        assert scope.cancelled_caught
    assert backend.alive == []


async def test_closing_from_another_task_leaves_nothing_and_tells_those_who_wait() -> None:
    backend = FakeBackend()
    hanging = hanging_backend()
    backend._make = lambda spec: (
        FakeSandbox() if spec.labels["task"] == "quick" else hanging._make(spec)
    )
    seen: list[str] = []
    errors: list[Exception] = []

    async def wait(awaitable: Any) -> None:
        try:
            await awaitable
        except EngineClosed as error:
            errors.append(error)

    async def read(results: AsyncIterator[RolloutResult]) -> None:
        seen.extend([result.task_id async for result in results])

    async with leak_census(), engine_of(backend) as engine:
        async with (
            engine.run([FakeTask(id="quick"), *tasks(5)], max_workers=6) as results,
            anyio.create_task_group() as group,
        ):
            handle = engine.start(FakeTask(id="handle"))
            group.start_soon(wait, engine.rollout(FakeTask(id="inline")))
            group.start_soon(wait, handle.result())
            await until(lambda: len(backend.created) == 8)
            await until(lambda: len(backend.alive) == 7)
            async with anyio.create_task_group() as closer:
                closer.start_soon(engine.aclose)
                closer.start_soon(engine.aclose)
            assert backend.alive == []
            with pytest.raises(EngineClosed):
                await read(results)
        assert seen == []
        with pytest.raises(EngineClosed):
            engine.start(FakeTask())
        with pytest.raises(EngineClosed):
            async with engine.run(tasks(1)):
                pass
        # The task that holds the engine goes on as if nothing had happened.
        await anyio.lowlevel.checkpoint()
    assert len(errors) == 2


async def test_results_finished_before_a_close_can_still_be_read() -> None:
    async with engine_of() as engine, engine.run(tasks(4), max_workers=4) as results:
        for _ in range(300):
            await anyio.lowlevel.checkpoint()
        await engine.aclose()
        assert [result.status async for result in results] == ["finished"] * 4


async def test_stop_ends_what_runs_and_keeps_what_is_finished() -> None:
    slow = hanging_backend()
    backend = FakeBackend(
        lambda spec: slow._make(spec) if spec.labels["task"] == "slow" else FakeSandbox()
    )
    async with (
        engine_of(backend) as engine,
        engine.run([*tasks(3), FakeTask(id="slow")], max_workers=4) as results,
    ):
        await until(lambda: len(backend.created) == 4)
        await until(lambda: len(backend.alive) == 1)
        results.stop()
        assert sorted([r.task_id async for r in results]) == ["task-0", "task-1", "task-2"]
    assert backend.alive == []


async def test_closing_from_inside_a_rollout_does_not_deadlock() -> None:
    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        await engine.aclose()
        return 1.0

    backend = FakeBackend()
    async with engine_of(backend) as engine:
        with pytest.raises(EngineClosed):
            await engine.rollout(FakeTask(reward=reward))
    assert backend.alive == []


# Engines ----------------------------------------------------------------------------------------


async def test_two_engines_work_side_by_side() -> None:
    first, second = FakeBackend(), FakeBackend()
    async with engine_of(first) as one, engine_of(second) as two:
        assert one.run_id != two.run_id
        async with one.run(tasks(5)) as a, two.run(tasks(7)) as b:
            await one.aclose()
            assert len([result async for result in b]) == 7
            with pytest.raises(EngineClosed):
                _ = [result async for result in a]
    assert len(second.created) == 7


async def test_the_backend_is_left_in_the_task_that_entered_it() -> None:
    class Strict(FakeBackend):
        entered: asyncio.Task[Any] | None = None
        left: asyncio.Task[Any] | None = None

        async def __aenter__(self) -> Self:
            self.entered = asyncio.current_task()
            return self

        async def __aexit__(
            self,
            exc_type: type[BaseException] | None,
            exc: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            await anyio.lowlevel.checkpoint()
            self.left = asyncio.current_task()

    backend = Strict()
    async with engine_of(backend) as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(engine.aclose)
        assert backend.left is backend.entered is not None


async def test_a_backend_that_cannot_be_reached_is_said_plainly_and_leaves_nothing() -> None:
    class Unreachable(FakeBackend):
        async def __aenter__(self) -> Self:
            await anyio.lowlevel.checkpoint()
            raise BackendUnavailable("no daemon at unix:///x; start dockerd")

    async with leak_census():
        with pytest.raises(BackendUnavailable, match="start dockerd"):
            async with engine_of(Unreachable()):
                raise AssertionError


async def test_a_backend_that_cannot_disconnect_is_an_error_of_leaving() -> None:
    class Stuck(FakeBackend):
        async def __aexit__(self, *_: object) -> None:
            raise SandboxError("3 containers could not be removed")

    with pytest.raises(SandboxError, match="3 containers"):
        async with engine_of(Stuck()):
            pass


async def test_cancelling_while_entering_leaves_nothing() -> None:
    class Slow(FakeBackend):
        async def __aenter__(self) -> Self:
            await anyio.sleep_forever()
            return self

    async with leak_census():
        with anyio.move_on_after(0.02) as scope:
            async with engine_of(Slow()):
                raise AssertionError
        assert scope.cancelled_caught


def test_an_engine_may_be_made_before_there_is_a_loop() -> None:
    engine = engine_of()

    async def main() -> None:
        async with engine, engine.run(tasks(2)) as results:
            assert [result.status async for result in results] == ["finished"] * 2

    anyio.run(main)


async def test_an_engine_is_entered_once_and_used_while_open() -> None:
    engine = engine_of()
    with pytest.raises(EngineClosed):
        engine.start(FakeTask())
    assert engine.model is None
    async with engine:
        assert engine.model is not None
        assert engine.model.name == "scripted"
        with pytest.raises(ConfigError, match="only once"):
            await engine.__aenter__()
        assert (await engine.rollout(FakeTask())).status == "finished"


async def test_signal_handlers_are_left_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with engine_of() as engine:
        await engine.rollout(FakeTask())
        assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


async def test_wrong_configurations_are_refused() -> None:
    with pytest.raises(ConfigError, match="either servers or a model"):
        RolloutEngine(EnvConfig())
    with pytest.raises(ConfigError, match="either servers or a model"):
        RolloutEngine(EnvConfig(), [ServerConfig()], model=ScriptedModel(replay([])))
    with pytest.raises(UnknownName, match="toolset"):
        async with engine_of(enabled_toolsets=["nosuch"]):
            pass
    with pytest.raises(UnknownName, match="terminal backend"):
        async with RolloutEngine(
            AgentFields(terminal_backend="nosuch"), [ServerConfig(server_type="nop")]
        ):
            pass


async def test_servers_are_opened_from_their_configuration() -> None:
    engine = RolloutEngine(
        EnvConfig(), [ServerConfig(server_type="nop")] * 2, backend=FakeBackend()
    )
    async with engine:
        result = await engine.rollout(FakeTask())
    assert result.agent is not None
    assert [m["role"] for m in result.agent.messages] == ["user", "assistant"]


# Sampling ---------------------------------------------------------------------------------------


class SamplingModel:
    """Remembers how its sessions were opened."""

    name = "sampling"

    def __init__(self, context_tokens: int | None = None) -> None:
        self.context_tokens = context_tokens
        self.opened: list[tuple[Sampling, int | None]] = []

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[Any]:
        self.opened.append((sampling, seed))
        async with ScriptedModel(replay([])).session(tools=tools, sampling=sampling) as session:
            yield session


async def test_the_sequence_budget_is_the_configured_one_else_the_models_context() -> None:
    for configured, expected in [(None, 8192), (500, 500)]:
        model = SamplingModel(context_tokens=8192)
        async with engine_of(model=model, max_token_length=configured) as engine:
            await engine.rollout(FakeTask())
        assert model.opened[0][0].max_token_length == expected


async def test_seeds_are_stable_per_task_and_attempt_and_can_be_given() -> None:
    async def seeds_of(base: int) -> list[int | None]:
        model = SamplingModel()
        async with engine_of(model=model, seed=base) as engine:
            async with engine.run(tasks(3), attempts=2, max_workers=1) as results:
                _ = [result async for result in results]
            await engine.rollout(FakeTask(), seed=42)
        return [seed for _, seed in model.opened]

    first = await seeds_of(1)
    assert first == await seeds_of(1)
    assert first != await seeds_of(2)
    assert len(set(first)) == 7
    assert first[-1] == 42


async def test_retried_rollouts_free_their_permit_for_others() -> None:
    failures = [Capacity("full")] * 3

    def make(spec: SandboxSpec) -> FakeSandbox:
        if spec.labels["task"] == "task-0" and failures:
            raise failures.pop()
        return FakeSandbox()

    backend = FakeBackend(make)
    async with (
        engine_of(backend, max_running_sandboxes=1, rollout_retries=3) as engine,
        engine.run(tasks(3), max_workers=3) as results,
    ):
        finished = {r.task_id: len(r.retried) async for r in results}
    assert finished == {"task-0": 3, "task-1": 0, "task-2": 0}
