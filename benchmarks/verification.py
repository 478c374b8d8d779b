"""Verification of one rollout in Terminal-Bench layout: the order, and what an outcome means.

The order, after the agent (its call in flight is dead, its other processes live on):

1. the task's collect hooks run
2. what differs from the image is compared with the list of :mod:`hermes_rl.tamper`; where
   processes are left, a rehearsal shows whether one writes rewards
   (:mod:`hermes_rl.benchmarks.decoy`)
3. ``test.sh`` runs and its reward is read (:mod:`hermes_rl.benchmarks.verifier_run`)
4. a pass is looked at twice (:mod:`hermes_rl.benchmarks.pass_checks`)
5. the task's artifacts are copied out

Outcomes: any readable reward is the reward; the exit code of ``test.sh`` means nothing; no end in
time and a reward that is none are errors. A run is *unsettled* if there is no reward at all, or
if the reward is 0, ``test.sh`` asks for a test report (``--ctrf``) and there is none: then the
verifier may never have got to its tests because something it downloads was out of reach. It is
run once more in the same sandbox and, if that settles nothing, in a fresh one. What works there
was broken by the agent, whose score is 0; what does not work there either is an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from hermes_rl.benchmarks.artifacts import Artifact, save_artifacts
from hermes_rl.benchmarks.decoy import decoy_flags
from hermes_rl.benchmarks.pass_checks import pass_flags
from hermes_rl.benchmarks.verifier_run import Harness, VerifierRun
from hermes_rl.errors import (
    RewardError,
    RewardUnreadable,
    SandboxError,
    Unsupported,
    VerifierBootstrapFailed,
    VerifierTimeout,
)
from hermes_rl.redirection import redirection_flags
from hermes_rl.sandbox import Capability, Sandbox
from hermes_rl.tamper import FLAG, SUSPECTS, tamper_flags
from hermes_rl.types import JSONObject, Reward

if TYPE_CHECKING:
    from hermes_rl.context import ToolContext

__all__ = ["LOOK_S", "REPORT_OPTION", "CollectHook", "Verifier"]

RERUN_S = 300.0
"""Further runs of an unsettled verifier have what is left of its time, but at least this."""
LOOK_S = 100.0
"""For finding out what the agent changed. The engine walks through all that the sandbox wrote:
moments, but an agent may have left millions of files, and a busy engine takes its time."""
_SURROUNDINGS_S = 180.0
"""A look for names that lead elsewhere, a rehearsal, a fresh sandbox, uploads, reading,
artifacts."""
REPORT_OPTION = b"--ctrf"


@dataclass(slots=True, frozen=True, kw_only=True)
class CollectHook:
    """A command that a task runs between agent and tests, e.g. to dump a service's state."""

    command: str
    timeout_s: float = 60.0
    user: str | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Verifier:
    """How a task is verified.

    Attributes:
        harness: Its tests.
        timeout_s: Time of ``test.sh``; ``ctx.limit_s`` caps it.
        wants_report: Its ``test.sh`` asks for a test report.
        collect: Its hooks.
        artifacts: What is copied out in the end.
    """

    harness: Harness
    timeout_s: float
    wants_report: bool = False
    collect: Sequence[CollectHook] = ()
    artifacts: Sequence[Artifact] = ()

    @property
    def margin_s(self) -> float:
        """Seconds that may be needed around the verifier's own: hooks, the look, further runs."""
        hooks_s = sum(hook.timeout_s for hook in self.collect)
        return hooks_s + LOOK_S + RERUN_S + _SURROUNDINGS_S

    async def run(self, ctx: ToolContext) -> Reward:
        """Verify what the agent left in the context's sandbox.

        Raises:
            VerifierTimeout: ``test.sh`` did not end in time.
            VerifierBootstrapFailed: It cannot set itself up in a fresh sandbox either.
            RewardUnreadable: No reward could be had.
            SandboxError: The sandbox failed.
        """
        sandbox = ctx.sandbox
        evidence = await self._collect(sandbox)
        flags = await self._tamper_flags(sandbox)
        spoilers = await decoy_flags(self.harness, sandbox)
        flags += spoilers
        limit_s = min(self.timeout_s, math.inf if ctx.limit_s is None else ctx.limit_s)
        try:
            run, notes = await _Verification(self, ctx, limit_s).settled()
            value = 0.0 if "agent_broke" in notes else run.files.value()
        except RewardUnreadable as error:
            if not spoilers:
                raise
            return Reward(0.0, evidence | {"agent_broke": f"{spoilers[0]}; {error}"}, flags)
        if value >= 1.0:
            flags += await pass_flags(run, self.harness.tests, sandbox)
        evidence |= notes | _evidence(run)
        evidence |= await save_artifacts(self.artifacts, sandbox, ctx.artifacts)
        return Reward(value, evidence, flags)

    async def _collect(self, sandbox: Sandbox) -> JSONObject:
        failed = []
        for hook in self.collect:
            done = await sandbox.exec(
                hook.command, timeout_s=hook.timeout_s, session=None, user=hook.user
            )
            if done.exit_code != 0:
                failed.append({"command": hook.command, "exit_code": done.exit_code})
        return {"collect_failed": failed} if failed else {}

    async def _tamper_flags(self, sandbox: Sandbox) -> tuple[str, ...]:
        if Capability.CHANGES not in sandbox.capabilities:
            return ()
        harness = self.harness
        flags: tuple[str, ...] = (f"{FLAG}: (what was changed) (not known after {LOOK_S:g} s)",)
        with anyio.move_on_after(LOOK_S):
            changes = await sandbox.changes(suspects=SUSPECTS)
            flags = await tamper_flags(sandbox, changes, user=harness.user, env=harness.env)
        return flags + await redirection_flags(sandbox)

    def is_unsettled(self, run: VerifierRun) -> bool:
        """Say whether a run may have ended before it came to its tests."""
        if run.missing():
            return True
        return self.wants_report and run.files.report is None and run.files.value() == 0


class _Verification:
    """The runs of one verifier in one rollout."""

    def __init__(self, verifier: Verifier, ctx: ToolContext, limit_s: float) -> None:
        self._verifier = verifier
        self._ctx = ctx
        self._limit_s = limit_s

    async def settled(self) -> tuple[VerifierRun, JSONObject]:
        """Return the run that counts, and what is to be said about it."""
        started_at = anyio.current_time()
        first = await self._run(self._ctx.sandbox, self._limit_s)
        if not self._verifier.is_unsettled(first):
            return first, {}
        left_s = max(RERUN_S, self._limit_s - (anyio.current_time() - started_at))
        second = await self._rerun(self._ctx.sandbox, left_s / 2)
        if second is not None and not self._verifier.is_unsettled(second):
            return second, {"verifier_runs": 2}
        await self._must_work_in_a_fresh_sandbox(first, left_s / 2)
        reason = "the verifier works in a fresh sandbox of this image, but not in the agent's"
        return first, {"verifier_runs": 3, "agent_broke": reason}

    async def _run(self, sandbox: Sandbox, timeout_s: float) -> VerifierRun:
        return await VerifierRun.of(self._verifier.harness, sandbox, timeout_s=timeout_s)

    async def _rerun(self, sandbox: Sandbox, timeout_s: float) -> VerifierRun | None:
        try:
            return await self._run(sandbox, timeout_s)
        except VerifierTimeout:
            return None

    async def _must_work_in_a_fresh_sandbox(self, first: VerifierRun, timeout_s: float) -> None:
        """Find out whether the agent or the world is to blame.

        Raises:
            RewardError: It is not the agent: what the first run came to.
        """
        try:
            async with self._ctx.spare_sandbox() as spare:
                run = await self._rerun(spare, timeout_s)
        except (SandboxError, Unsupported) as error:
            raise _never_settled(first) from error
        if run is None or self._verifier.is_unsettled(run):
            raise _never_settled(first)


def _never_settled(first: VerifierRun) -> RewardError:
    return first.missing() or VerifierBootstrapFailed(
        "verifier_bootstrap: test.sh left a reward of 0 but no test report, in a fresh sandbox "
        "too; something it needs is probably out of reach. Its output ends:\n"
        f"{first.output_tail}"
    )


def _evidence(run: VerifierRun) -> JSONObject:
    evidence: JSONObject = {
        "test_exit_code": run.exit_code,
        "test_duration_s": run.duration_s,
        "test_output_tail": run.output_tail,
    }
    if run.files.has_reward:
        rewards = run.files.rewards()
        evidence |= {"rewards": rewards} if len(rewards) > 1 else {}
    return evidence | (run.files.report or {})
