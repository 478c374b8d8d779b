"""One try of a rollout: permit, sandbox, agent, reward, teardown.

A trial is the only owner of everything it acquires, and tears it down whatever happens: shielded
from cancellation, each step bounded, in reverse order of acquisition. It holds a running permit
from before its sandbox is asked for until it is gone.

What ends how:

* the agent met a limit, or itself broke its sandbox: scored, counts as the agent's
* the sandbox was lost, a tool or the reward code broke, a deadline of ours passed: errored
* the model's API failed: errored; scored all the same when no further try follows, because the
  verifier's word is evidence
* no other rollout could fare better (wrong API key, wrong configuration): raised, stops the run
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio

from hermes_rl.agent import HermesAgentLoop
from hermes_rl.author_code import exits_as
from hermes_rl.config import ProcessesAtReward
from hermes_rl.context import ToolContext
from hermes_rl.errors import (
    ConfigError,
    CreateError,
    HermesRLError,
    ModelError,
    RewardError,
    SandboxError,
    SandboxGone,
    TaskError,
)
from hermes_rl.foreign_backend import blamed_on, create_sandbox
from hermes_rl.model.protocol import ChatModel
from hermes_rl.plan import LEASE_MARGIN_S, RolloutPlan
from hermes_rl.results import Phase, RolloutTimings
from hermes_rl.reward import score
from hermes_rl.rollout_site import CLOSE_SANDBOX_S, RolloutSite
from hermes_rl.sandbox import Capability, Sandbox
from hermes_rl.tools import ToolDispatcher, ToolSettings
from hermes_rl.types import AgentResult, JSONObject, Reward, StopReason

__all__ = ["Trial", "stops_run"]

START_QUEUE_S = 1800.0
"""A backend starts a few sandboxes at a time; so long may one wait for its turn, beyond its own
deadline, before we take the backend to hang."""
CLOSE_TOOLS_S = 5.0
SOLUTION_DIR = "/solution"
"""Where a task's solution is uploaded for the oracle, as Terminal-Bench has it."""
SOLUTION_TOOL = "terminal"
"""Solutions are commands, whatever tools the agent would have."""
REWARD_PROTECTIONS = (
    Capability.ISOLATION,
    Capability.USERS,
    Capability.PAUSE,
    Capability.CHANGES,
    Capability.ENGINE_ACCESS,
)
"""What keeps an agent's leftovers from touching its own score."""


def stops_run(error: BaseException) -> bool:
    """Say whether no other rollout of the run can succeed either."""
    return isinstance(error, ConfigError) or (isinstance(error, HermesRLError) and error.stops_run)


@contextmanager
def _deadline(seconds: float, error: HermesRLError) -> Iterator[None]:
    """Raise ``error`` when the body was cut off by the deadline.

    A TimeoutError that the body raises by itself stays what it is.
    """
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise error


def _single(error: Exception) -> Exception:
    """Return the one exception inside a group: what a task group of reward code was told."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _is_agents_doing(error: HermesRLError, agent: AgentResult) -> bool:
    """Say whether a reward failed because the agent had broken its sandbox."""
    if agent.stop_reason is StopReason.SANDBOX_BROKEN:
        return isinstance(error, SandboxError | RewardError)
    cause = error if isinstance(error, SandboxGone) else error.__cause__
    return isinstance(cause, SandboxGone) and cause.by_agent


class Trial:
    """One try. ``run`` once; then read the attributes.

    Attributes:
        phase: Where it is, or where it ended; with an ``error``, where that happened.
        error: What went wrong, None if nothing did.
        teardown_error: What went wrong while tearing down.
        reward: The score, if there is one.
        schemas: Tools the model was given.
        missing_protections: See :data:`REWARD_PROTECTIONS`.
    """

    def __init__(
        self,
        site: RolloutSite,
        plan: RolloutPlan,
        *,
        seed: int | None,
        is_last: bool,
        attempt: int = 0,
    ) -> None:
        self.phase: Phase = "setup"
        self.error: Exception | None = None
        self.teardown_error: Exception | None = None
        self.reward: Reward | None = None
        self.schemas: tuple[JSONObject, ...] = ()
        self.missing_protections: tuple[str, ...] = ()
        self._site = site
        self._plan = plan
        self._seed = seed
        self._attempt = attempt
        self._is_last = is_last
        self._seconds: dict[str, float] = {}
        self._sandbox: Sandbox | None = None
        self._tools: ToolDispatcher | None = None
        self._loop: HermesAgentLoop | None = None

    @property
    def agent(self) -> AgentResult | None:
        """What the agent did so far, None if it never started."""
        return self._loop.result if self._loop else None

    @property
    def timings(self) -> RolloutTimings:
        """Seconds per phase so far."""
        return RolloutTimings(**{f"{name}_s": value for name, value in self._seconds.items()})

    async def run(self) -> None:
        """Run to the end and tear down. Failures are kept in ``error``.

        Raises:
            HermesRLError: One that stops the whole run; everything is torn down all the same.
        """
        try:
            model = self._site.model_for(self._plan.description)
            async with self._permit():
                try:
                    await self._run_phases(model)
                finally:
                    await self._tear_down()
        except Exception as error:
            self.error = _single(error)
        if self.error is not None and stops_run(self.error):
            raise self.error

    async def _run_phases(self, model: ChatModel) -> None:
        sandbox, tools = await self._set_up()
        agent, model_error = await self._act(model, tools)
        try:
            await self._score(agent, sandbox, tools)
        except Exception as error:
            # After a failed model the score is only evidence; the failure to report is the model's.
            if model_error is None or stops_run(error):
                raise
        if model_error is not None:
            self.phase = "agent"
            raise model_error

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started_at = self._site.clock()
        try:
            yield
        finally:
            self._seconds[name] = self._site.clock() - started_at

    @contextmanager
    def _in_phase(self, phase: Phase) -> Iterator[None]:
        self.phase = phase
        with self._timed(phase):
            yield

    @asynccontextmanager
    async def _permit(self) -> AsyncIterator[None]:
        running = self._site.running
        with self._timed("queued"):
            # On behalf of the trial, not of the task: reward code may start rollouts of its own.
            await running.acquire_on_behalf_of(self)
        try:
            yield
        finally:
            running.release_on_behalf_of(self)

    async def _set_up(self) -> tuple[Sandbox, ToolDispatcher]:
        plan, spec = self._plan, self._plan.spec
        image_s = spec.build_timeout_s if spec.image or spec.dockerfile_dir else 0.0
        stuck = CreateError(f"The sandbox was not ready within {plan.setup_s:g} s.")
        stuck.retryable = True
        with self._in_phase("setup"):
            with _deadline(plan.setup_s + image_s + START_QUEUE_S, stuck):
                self._sandbox = sandbox = await create_sandbox(self._site.backend, spec)
            self._tools = tools = self._make_tools(sandbox)
            self.schemas = tuple(tools.schemas)
            solution = plan.description.solution
            files = solution.files if solution is not None else None
            if files is not None and self._site.plays_solutions:
                with _deadline(plan.setup_s, stuck):
                    await self._upload_solution(files, sandbox)
            if plan.description.setup is not None:
                await self._prepare(plan.description.setup, ToolContext(sandbox, tools))
        return sandbox, tools

    async def _upload_solution(self, files: Path, sandbox: Sandbox) -> None:
        """Put the solution where only root can, for whatever user the agent is."""
        root = "root" if Capability.USERS in sandbox.capabilities else None
        await sandbox.upload(files, SOLUTION_DIR, user=root)
        await sandbox.exec(
            ["chmod", "-R", "a+rx", SOLUTION_DIR],
            timeout_s=self._plan.setup_s,
            session=None,
            cwd="/",
            user=root,
        )

    async def _prepare(
        self, setup: Callable[[ToolContext], Awaitable[None]], context: ToolContext
    ) -> None:
        """Let the task prepare the sandbox.

        Raises:
            TaskError: It did not within the setup deadline, left a call un-awaited, or exited.
        """
        seconds = self._plan.setup_s
        late = TaskError(f"The task's setup took longer than {seconds:g} s.")
        with _deadline(seconds, late), exits_as(TaskError, "setup"):
            await setup(context)
        if pending := context.pending():
            raise TaskError("; ".join(pending))

    def _make_tools(self, sandbox: Sandbox) -> ToolDispatcher:
        """Return the rollout's tools; a solution may run as long as the agent may."""
        names = self._plan.tool_names
        default_s = float(self._site.config.terminal_timeout)
        longest_s = max(ToolSettings().max_command_timeout_s, default_s)
        if self._site.plays_solutions:
            names = tuple({*names, SOLUTION_TOOL})
            default_s = longest_s = self._plan.agent_s
        settings = ToolSettings(
            command_timeout_s=default_s,
            max_command_timeout_s=longest_s,
            user=self._plan.description.agent_user,
        )
        legacy = self._site.legacy.rollout() if self._site.legacy is not None else None
        return ToolDispatcher(
            sandbox,
            names,
            settings=settings,
            extra_tools=legacy.tools if legacy is not None else (),
            on_close=legacy.aclose if legacy is not None else None,
        )

    async def _act(
        self, model: ChatModel, tools: ToolDispatcher
    ) -> tuple[AgentResult, ModelError | None]:
        """Run the agent.

        Returns:
            What it did, and the failure of its model if the sandbox is scored regardless.
        """
        config, plan = self._site.config, self._plan
        self._loop = loop = HermesAgentLoop(
            model,
            self.schemas,
            tools.names,
            config.max_agent_turns,
            plan.description.id,
            config.agent_temperature,
            config.max_tokens_per_turn,
            config.extra_body,
            tools=tools,
            deadline_s=plan.agent_s,
            waiting_allowance_s=plan.waiting_s,
            max_token_length=self._site.token_budget(model),
            max_cost_usd=config.max_cost_usd,
            max_invalid_calls=config.max_invalid_calls,
            max_calls_per_turn=config.max_calls_per_turn,
            parallel_tool_calls=config.parallel_tool_calls,
            compact=plan.description.compact,
            seed=self._seed,
            clock=self._site.clock,
        )
        with self._in_phase("agent"):
            result = await loop.run(list(plan.messages))
        failure = loop.failure
        if failure is None or result.stop_reason is StopReason.SANDBOX_BROKEN:
            return result, None
        if isinstance(failure, ModelError) and self._is_graded(failure):
            return result, failure
        raise failure

    def _is_graded(self, error: ModelError) -> bool:
        """Say whether the sandbox is scored although the model's API failed."""
        return not error.stops_run and (self._is_last or not error.retryable)

    async def _score(self, agent: AgentResult, sandbox: Sandbox, tools: ToolDispatcher) -> None:
        plan, config = self._plan, self._site.config
        self.missing_protections = tuple(
            sorted(
                wanted.value for wanted in REWARD_PROTECTIONS if wanted not in sandbox.capabilities
            )
        )
        late = RewardError(f"The reward was not there within {plan.reward_s:g} s.")
        with self._in_phase("reward"), _deadline(plan.reward_s, late):
            try:
                if config.processes_at_reward is ProcessesAtReward.KILL:
                    await sandbox.kill_all()
                self.reward = await score(
                    plan.task.reward,
                    agent,
                    self._reward_context(sandbox, tools),
                    task=plan.description,
                    sync_reward=config.sync_reward,
                    threads=self._site.reward_threads,
                )
            except HermesRLError as error:
                if not _is_agents_doing(error, agent):
                    raise
                self.reward = Reward(0.0, evidence={"sandbox_broken": str(error)})

    def _reward_context(self, sandbox: Sandbox, tools: ToolDispatcher) -> ToolContext:
        plan, site = self._plan, self._site
        where = site.artifacts
        spec = replace(plan.spec, lease_s=plan.reward_s + LEASE_MARGIN_S)
        return ToolContext(
            sandbox,
            tools,
            limit_s=plan.reward_limit_s,
            artifacts=where(plan.description.id, self._attempt) if where else None,
            open_spare=partial(site.spare_sandbox, spec),
        )

    async def _tear_down(self) -> None:
        with self._timed("teardown"):
            try:
                if self._tools is not None:
                    await self._close("tools", self._tools.aclose, CLOSE_TOOLS_S)
            finally:
                if self._sandbox is not None:
                    await self._close("sandbox", self._close_sandbox, CLOSE_SANDBOX_S)

    async def _close_sandbox(self) -> None:
        assert self._sandbox is not None
        with blamed_on(self._site.backend, "while it closed a sandbox"):
            await self._sandbox.close()

    async def _close(self, what: str, close: Callable[[], Awaitable[None]], bound_s: float) -> None:
        """Close one thing, shielded and bounded, whatever it raises."""
        with anyio.move_on_after(bound_s, shield=True) as scope:
            try:
                await close()
            except SandboxGone:
                return
            except Exception as error:
                self.teardown_error = error
        if scope.cancelled_caught:
            self.teardown_error = SandboxError(f"Closing the {what} took more than {bound_s:g} s.")
