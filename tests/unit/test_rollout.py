"""One rollout: its phases, its failures, its retries, and that it always tears down."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

import hermes_rl.trial
from hermes_rl.config import AgentFields, ProcessesAtReward
from hermes_rl.context import SyncToolContext, ToolContext
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    HermesRLError,
    ImageNotFound,
    ModelRejected,
    ModelTransient,
    ModelUnauthorized,
    RateLimited,
    RewardError,
    SandboxError,
    SandboxGone,
    TaskError,
    Unsupported,
)
from hermes_rl.model.protocol import ChatModel
from hermes_rl.model.scripted import ScriptedModel, Turn, call, replay, say
from hermes_rl.plan import plan_rollout
from hermes_rl.rollout import Phase, Rollout, RolloutResult
from hermes_rl.rollout_site import PerTaskModel, RolloutSite
from hermes_rl.sandbox import Capability, ExecResult, SandboxSpec
from hermes_rl.tasks import Deadlines, Solution, TaskDescription
from hermes_rl.testing.fake_sandbox import FakeBackend, FakeSandbox
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.types import AgentResult, Message, Reward, StopReason

LIST_FILES = call("terminal", {"command": "ls"})


def rollout_of(
    task: FakeTask | None = None,
    *,
    backend: FakeBackend | None = None,
    model: ChatModel | PerTaskModel | None = None,
    running: int = 1,
    **config: Any,
) -> Rollout:
    site = RolloutSite(
        config=AgentFields(**config),
        backend=backend or FakeBackend(),
        model=model or ScriptedModel(replay([LIST_FILES])),
        running=anyio.CapacityLimiter(running),
        reward_threads=anyio.CapacityLimiter(running),
        clock=time.monotonic,
        retry_delay_s=0.0,
    )
    return Rollout(site, plan_rollout(site.config, task or FakeTask()))


def backend_running(
    answer: Callable[[str | Sequence[str]], ExecResult | Awaitable[ExecResult]],
) -> FakeBackend:
    return FakeBackend(lambda spec: FakeSandbox(run=answer))


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def failing_first(errors: list[Exception]) -> FakeBackend:
    """A backend whose first creations fail."""

    def make(spec: SandboxSpec) -> FakeSandbox:
        if errors:
            raise errors.pop(0)
        return FakeSandbox()

    return FakeBackend(make)


async def hang(*_: object) -> Any:
    await anyio.sleep_forever()


# Phases -----------------------------------------------------------------------------------------


async def test_a_rollout_scores_in_the_agents_sandbox_and_then_removes_it() -> None:
    backend = FakeBackend()

    async def reward(result: AgentResult, ctx: ToolContext) -> Reward:
        (sandbox,) = backend.alive
        assert ctx.sandbox is sandbox
        assert result.turns_used == 2
        answer = await ctx.terminal("check")
        return Reward(float(answer["exit_code"] == 0), evidence={"checked": True})

    task = FakeTask(id="t1", reward=reward, metadata={"kind": "easy"})
    result = await rollout_of(task, backend=backend).run()
    assert (result.task_id, result.status, result.score, result.passed) == ("t1", "finished", 1, 1)
    assert result.reward is not None
    assert result.reward.evidence == {"checked": True}
    assert result.metadata == {"kind": "easy"}
    assert result.failure is None
    assert {tool["function"]["name"] for tool in result.tools} >= {"terminal", "process"}
    assert backend.created[0].commands == ["ls", "check"]
    assert backend.created[0].closed == 1
    assert result.timings.setup_s > 0
    assert result.timings.agent_s > 0
    assert result.timings.reward_s > 0


async def test_missing_protections_of_the_reward_are_in_the_result() -> None:
    def make(spec: SandboxSpec) -> FakeSandbox:
        sandbox = FakeSandbox()
        sandbox.capabilities = frozenset({Capability.ISOLATION, Capability.PAUSE})
        return sandbox

    result = await rollout_of(backend=FakeBackend(make)).run()
    assert result.missing_protections == ("changes", "engine_access", "users")


async def test_a_missing_capability_skips_before_anything_is_spent() -> None:
    backend = FakeBackend()
    task = FakeTask(sandbox=SandboxSpec(image="x", memory_mb=64))
    result = await rollout_of(task, backend=backend, model=ScriptedModel(raising(KeyError()))).run()
    assert result.status == "skipped"
    assert result.failure is not None
    assert "'fake' lacks what this task needs: images, memory_limit" in result.failure.message
    assert backend.specs == []


async def test_a_backend_that_finds_out_late_that_it_cannot_skips_too() -> None:
    backend = failing_first([Unsupported("no GPUs here", capability="gpu")])
    result = await rollout_of(backend=backend).run()
    assert (result.status, result.reward) == ("skipped", None)


@pytest.mark.parametrize("choice", list(ProcessesAtReward))
async def test_processes_are_kept_for_the_reward_unless_told_otherwise(
    choice: ProcessesAtReward,
) -> None:
    backend = FakeBackend()
    await rollout_of(backend=backend, processes_at_reward=choice).run()
    assert backend.created[0].killed == (choice is ProcessesAtReward.KILL)


async def test_commands_run_as_the_agents_user_until_its_deadline() -> None:
    seen: list[tuple[str | None, float]] = []

    class Recording(FakeSandbox):
        async def exec(self, cmd: str | Sequence[str], **options: Any) -> ExecResult:
            seen.append((options["user"], options["timeout_s"]))
            return await super().exec(cmd, **options)

    task = FakeTask(agent_user="agent")
    await rollout_of(task, backend=FakeBackend(lambda spec: Recording()), terminal_timeout=7).run()
    assert seen == [("agent", 7.0)]


# Reward code ------------------------------------------------------------------------------------


async def test_an_unawaited_call_makes_the_rollout_errored_with_its_line() -> None:
    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        ctx.terminal("rm -rf /tmp/x")  # type: ignore[unused-coroutine, unused-ignore]
        return 1.0

    result = await rollout_of(FakeTask(reward=reward)).run()
    assert (result.status, result.reward) == ("errored", None)
    assert result.failure is not None
    assert result.failure.phase == "reward"
    line = reward.__code__.co_firstlineno + 1
    assert f"{__file__}:{line}: ctx.terminal(...) was not awaited" in result.failure.message


async def test_a_plain_function_gets_a_context_that_blocks() -> None:
    def reward(result: AgentResult, ctx: SyncToolContext) -> float:
        assert threading.current_thread() is not threading.main_thread()
        ctx.write_file("/root/x", "abc")
        return float(ctx.read_file("/root/x")["content"] == "abc")

    assert (await rollout_of(FakeTask(reward=reward)).run()).score == 1.0


@pytest.mark.parametrize("where", ["task", "config"])
async def test_sync_reward_runs_old_unawaited_coroutine_code(where: str) -> None:
    async def reward(result: AgentResult, ctx: Any) -> float:
        test = ctx.terminal("pytest -v")
        return 1.0 if test["exit_code"] == 0 else 0.0

    task = FakeTask(reward=reward, sync_reward=where == "task")
    result = await rollout_of(task, sync_reward=where == "config").run()
    assert (result.status, result.score) == ("finished", 1.0)


async def test_a_bug_in_reward_code_is_errored_with_its_place_and_traceback() -> None:
    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        raise KeyError("missing")

    result = await rollout_of(FakeTask(reward=reward), rollout_retries=5).run()
    assert result.status == "errored"
    failure = result.failure
    assert failure is not None
    assert (failure.kind, failure.phase, failure.attempts) == ("KeyError", "reward", 1)
    assert "test_rollout.py" in failure.message
    assert 'raise KeyError("missing")' in failure.traceback


@pytest.mark.parametrize("value", [float("nan"), None, "1.0"])
async def test_a_reward_that_is_no_number_is_errored_never_zero(value: object) -> None:
    async def reward(result: AgentResult, ctx: ToolContext) -> Any:
        return value

    result = await rollout_of(FakeTask(reward=reward)).run()
    assert (result.status, result.reward) == ("errored", None)


# Deadlines --------------------------------------------------------------------------------------


async def test_the_agents_deadline_cuts_it_off_and_it_is_scored() -> None:
    backend = backend_running(lambda cmd: hang() if cmd == "ls" else ExecResult(exit_code=0))

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        assert result.stop_reason is StopReason.WALL_CLOCK
        return float((await ctx.terminal("true"))["exit_code"] == 0)

    task = FakeTask(reward=reward, deadlines=Deadlines(agent_s=0.05))
    result = await rollout_of(task, backend=backend).run()
    assert (result.status, result.score) == ("finished", 1.0)


async def test_a_late_reward_is_errored_and_not_retried() -> None:
    backend = FakeBackend()
    task = FakeTask(reward=hang, deadlines=Deadlines(reward_s=0.05))
    result = await rollout_of(task, backend=backend).run()
    assert result.failure is not None
    assert result.failure.kind == "RewardError"
    assert "within 0.05 s" in result.failure.message
    assert len(backend.created) == 1
    assert backend.alive == []


async def test_a_timeout_inside_reward_code_is_not_mistaken_for_the_deadline() -> None:
    result = await rollout_of(FakeTask(reward=raising(TimeoutError("mine")))).run()
    assert result.failure is not None
    assert result.failure.kind == "TimeoutError"


async def test_a_blocking_reward_past_its_deadline_does_not_hold_the_rollout() -> None:
    late, went_on = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def reward(result: AgentResult, ctx: SyncToolContext) -> float:
        late.wait()
        try:
            ctx.terminal("true")
        except RewardError as error:
            errors.append(error)
        went_on.set()
        return 1.0

    task = FakeTask(reward=reward, deadlines=Deadlines(reward_s=0.05))
    result = await rollout_of(task).run()
    assert result.status == "errored"
    late.set()
    assert await anyio.to_thread.run_sync(went_on.wait, 10)
    assert "came too late" in str(errors[0])


async def test_a_sandbox_that_never_starts_is_retried_then_errored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hermes_rl.trial, "START_QUEUE_S", 0.0)
    backend = FakeBackend(hang)
    task = FakeTask(deadlines=Deadlines(setup_s=0.02))
    result = await rollout_of(task, backend=backend, rollout_retries=1).run()
    assert result.failure is not None
    assert (result.failure.kind, result.failure.phase) == ("CreateError", "setup")
    assert len(backend.specs) == 2


# Failures and retries ---------------------------------------------------------------------------


async def test_start_failures_are_retried_as_a_whole_and_reported() -> None:
    backend = failing_first([Capacity("full"), BackendUnavailable("no daemon")])
    result = await rollout_of(backend=backend, rollout_retries=2).run()
    assert result.status == "finished"
    assert [(f.kind, f.attempts) for f in result.retried] == [
        ("Capacity", 1),
        ("BackendUnavailable", 2),
    ]


async def test_the_retry_budget_ends_with_the_last_error() -> None:
    backend = failing_first([Capacity("full")] * 9)
    result = await rollout_of(backend=backend, rollout_retries=2).run()
    assert result.failure is not None
    assert (result.status, result.failure.kind, result.failure.attempts) == (
        "errored",
        "Capacity",
        3,
    )
    assert len(backend.specs) == 3


async def test_what_cannot_succeed_later_is_not_retried() -> None:
    backend = failing_first([ImageNotFound("no such image")])
    result = await rollout_of(backend=backend, rollout_retries=9).run()
    assert (result.status, len(backend.specs)) == ("errored", 1)


async def test_waiting_for_a_retry_holds_no_permit_and_honours_retry_after() -> None:
    backend = failing_first([RateLimited("slow down", retry_after_s=0.2)])
    rollout = rollout_of(backend=backend)
    results: list[RolloutResult] = []

    async def run() -> None:
        results.append(await rollout.run())

    async with anyio.create_task_group() as group:
        started_at = anyio.current_time()
        group.start_soon(run)
        while not backend.specs:
            await anyio.lowlevel.checkpoint()
        await anyio.sleep(0.02)
        assert rollout._site.running.borrowed_tokens == 0
    assert results[0].status == "finished"
    assert anyio.current_time() - started_at >= 0.2


async def test_a_lost_sandbox_is_retried_with_a_fresh_one() -> None:
    lost = [SandboxGone("daemon restarted", cause="removed")]

    def answer(cmd: object) -> ExecResult:
        if lost:
            raise lost.pop()
        return ExecResult(exit_code=0)

    backend = backend_running(answer)
    result = await rollout_of(backend=backend).run()
    assert result.status == "finished"
    assert result.retried[0].kind == "SandboxGone"
    assert result.agent is not None
    assert result.agent.turns_used == 2
    assert len(backend.created) == 2
    assert backend.alive == []


async def test_a_sandbox_broken_by_the_agent_is_its_failure_graded_and_counted() -> None:
    backend = backend_running(raising(SandboxGone("out of memory", cause="oom", by_agent=True)))

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        return 1.0 if (await ctx.terminal("true"))["exit_code"] == 0 else 0.0

    result = await rollout_of(FakeTask(reward=reward), backend=backend).run()
    assert (result.status, result.score) == ("finished", 0.0)
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.SANDBOX_BROKEN
    assert result.reward is not None
    assert result.reward.evidence == {"sandbox_broken": "out of memory"}
    assert len(backend.created) == 1


async def test_a_sandbox_that_the_agents_leftovers_break_during_the_reward_scores_zero() -> None:
    broken = SandboxGone("fork bomb", cause="oom", by_agent=True)

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        try:
            raise broken
        except SandboxGone as error:
            raise RewardError("the tests could not run") from error

    result = await rollout_of(FakeTask(reward=reward)).run()
    assert (result.status, result.score) == ("finished", 0.0)


async def test_a_sandbox_lost_during_the_reward_is_retried_whole() -> None:
    losses = [SandboxGone("node drained")]

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        if losses:
            raise losses.pop()
        return 1.0

    result = await rollout_of(FakeTask(reward=reward)).run()
    assert (result.status, len(result.retried)) == ("finished", 1)
    assert result.retried[0].phase == "reward"


async def test_an_error_inside_a_task_group_of_reward_code_is_seen_for_what_it_is() -> None:
    losses = [SandboxGone("node drained")]

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        async def check() -> None:
            if losses:
                raise losses.pop()

        async with anyio.create_task_group() as group:
            group.start_soon(check)
        return 1.0

    result = await rollout_of(FakeTask(reward=reward)).run()
    assert (result.status, [f.kind for f in result.retried]) == ("finished", ["SandboxGone"])


async def test_a_failed_model_is_retried_then_graded_but_never_counted() -> None:
    backend = FakeBackend()
    model = ScriptedModel(raising(ModelTransient("503", status=503)))
    result = await rollout_of(backend=backend, model=model, rollout_retries=1).run()
    assert result.status == "errored"
    assert result.failure is not None
    assert (result.failure.kind, result.failure.phase, result.failure.attempts) == (
        "ModelTransient",
        "agent",
        2,
    )
    assert result.reward == Reward(1.0)
    assert (result.score, result.passed) == (0.0, False)
    assert len(backend.created) == 2


async def test_a_rejected_request_is_not_retried_and_graded_at_once() -> None:
    graded: list[bool] = []

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        graded.append(True)
        raise RewardError("nothing to see")

    model = ScriptedModel(raising(ModelRejected("400", status=400)))
    result = await rollout_of(FakeTask(reward=reward), model=model).run()
    assert result.failure is not None
    assert (result.failure.kind, result.failure.phase) == ("ModelRejected", "agent")
    assert graded == [True]


@pytest.mark.parametrize("error", [ModelUnauthorized("bad key"), ConfigError("no such tool")])
async def test_what_no_rollout_can_get_past_is_raised_after_teardown(error: HermesRLError) -> None:
    backend = FakeBackend()
    with pytest.raises(type(error)):
        await rollout_of(backend=backend, model=ScriptedModel(raising(error))).run()
    assert len(backend.created) == 1
    assert backend.alive == []


async def test_a_broken_tool_is_our_fault_and_never_scored() -> None:
    backend = backend_running(raising(ZeroDivisionError("bug")))
    result = await rollout_of(backend=backend).run()
    assert (result.status, result.reward) == ("errored", None)
    assert result.failure is not None
    assert result.failure.kind == "ToolFault"
    assert "ZeroDivisionError" in result.failure.traceback


# The oracle -------------------------------------------------------------------------------------


class SolutionModel:
    """Plays a task's solution command, as the oracle does."""

    def __init__(self) -> None:
        self.tasks: list[str] = []

    def for_task(self, description: TaskDescription) -> ScriptedModel:
        if description.solution is None:
            raise TaskError(f"Task {description.id} has no solution.")
        self.tasks.append(description.id)
        return ScriptedModel(replay([call("terminal", {"command": description.solution.command})]))


async def test_the_oracle_gets_the_solution_files_a_terminal_and_all_the_agents_time(
    tmp_path: Path,
) -> None:
    (tmp_path / "solve.sh").write_text("echo solved")
    timeouts: list[float] = []

    class Recording(FakeSandbox):
        async def exec(self, cmd: str | Sequence[str], **options: Any) -> ExecResult:
            timeouts.append(options["timeout_s"])
            return await super().exec(cmd, **options)

    backend = FakeBackend(lambda spec: Recording())
    task = FakeTask(
        solution=Solution(command="bash /solution/solve.sh", files=tmp_path),
        deadlines=Deadlines(agent_s=2345.0),
    )
    result = await rollout_of(
        task, backend=backend, model=SolutionModel(), enabled_toolsets=["todo"]
    ).run()
    assert result.status == "finished"
    assert backend.created[0].files["/solution/solve.sh"] == b"echo solved"
    made_usable, solved = backend.created[0].commands
    assert made_usable == ["chmod", "-R", "a+rx", "/solution"]
    assert solved == "bash /solution/solve.sh"
    assert timeouts[1:] == [2345.0]


async def test_solution_files_are_not_shown_to_any_other_model(tmp_path: Path) -> None:
    (tmp_path / "solve.sh").write_text("echo solved")
    backend = FakeBackend()
    task = FakeTask(solution=Solution(command="x", files=tmp_path))
    await rollout_of(task, backend=backend).run()
    assert backend.created[0].files == {}


async def test_a_task_without_a_solution_costs_no_sandbox() -> None:
    backend = FakeBackend()
    result = await rollout_of(FakeTask(id="t"), backend=backend, model=SolutionModel()).run()
    assert result.failure is not None
    assert result.failure.message == "Task t has no solution."
    assert backend.specs == []


# Teardown ---------------------------------------------------------------------------------------


async def test_a_sandbox_that_cannot_be_closed_is_reported_beside_the_score() -> None:
    class Stuck(FakeSandbox):
        async def close(self) -> None:
            raise SandboxError("the daemon refused")

    result = await rollout_of(backend=FakeBackend(lambda spec: Stuck())).run()
    assert (result.status, result.score) == ("finished", 1.0)
    assert result.failure is not None
    assert (result.failure.phase, result.failure.message) == ("teardown", "the daemon refused")


async def test_teardown_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(FakeSandbox):
        async def close(self) -> None:
            await anyio.sleep_forever()

    monkeypatch.setattr(hermes_rl.trial, "CLOSE_SANDBOX_S", 0.05)
    result = await rollout_of(backend=FakeBackend(lambda spec: Stuck())).run()
    assert result.failure is not None
    assert "more than 0.05 s" in result.failure.message


def conversation(messages: Sequence[Message]) -> Turn:
    return LIST_FILES if len(messages) < 6 else say("done")


async def _rollout_cancelled_after(
    steps: int, *, outside: bool
) -> tuple[Phase | None, FakeBackend]:
    """Cancel a rollout after some steps of the event loop.

    Returns:
        The phase it was cut off in, None if it had ended, and the backend it ran on.
    """

    async def reward(result: AgentResult, ctx: ToolContext) -> float:
        await ctx.write_file("/root/x", "abc")
        return float((await ctx.terminal("true"))["exit_code"] == 0)

    async def make(spec: SandboxSpec) -> FakeSandbox:
        await anyio.lowlevel.checkpoint()
        return FakeSandbox()

    backend = FakeBackend(make)
    rollout = rollout_of(
        FakeTask(reward=reward), backend=backend, model=ScriptedModel(conversation)
    )
    results: list[RolloutResult] = []

    async def run() -> None:
        results.append(await rollout.run())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        for _ in range(steps):
            await anyio.lowlevel.checkpoint()
        (group.cancel_scope.cancel if outside else rollout.cancel)()
    assert rollout._site.running.borrowed_tokens == 0
    if not outside:
        assert len(results) == 1
    if results and results[0].status != "cancelled":
        return None, backend
    return rollout._trial.phase if rollout._trial else "setup", backend


@pytest.mark.parametrize("outside", [False, True], ids=["by its handle", "from outside"])
async def test_cancelling_at_any_await_leaves_no_sandbox(outside: bool) -> None:
    cut_in: list[Phase] = []
    finished_in_a_row, steps = 0, 0
    while finished_in_a_row < 3:
        phase, backend = await _rollout_cancelled_after(steps, outside=outside)
        assert [sandbox.closed for sandbox in backend.created] == [1] * len(backend.created)
        assert len(backend.created) <= 1
        finished_in_a_row = finished_in_a_row + 1 if phase is None else 0
        cut_in += [phase] if phase else []
        steps += 1
        assert steps < 500
    assert len(cut_in) > 10
    assert set(cut_in) == {"setup", "agent", "reward"}


async def test_a_cancelled_rollout_keeps_what_the_agent_did_and_no_score() -> None:
    backend = backend_running(hang)
    rollout = rollout_of(backend=backend)
    results: list[RolloutResult] = []

    async def run() -> None:
        results.append(await rollout.run())

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        while not (backend.created and backend.created[0].commands):
            await anyio.lowlevel.checkpoint()
        rollout.cancel()
    (result,) = results
    assert (result.status, result.reward) == ("cancelled", None)
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.CANCELLED
    assert [m["role"] for m in result.agent.messages] == ["user", "assistant", "tool"]
