"""One rollout: a task, tried until there is a result.

Infrastructure failures are retried as a whole: a fresh sandbox, a fresh conversation, the same
seed, at most ``rollout_retries`` times. The wait in between holds no permit. A task whose sandbox
the backend cannot provide is skipped before anything is spent.
"""

from __future__ import annotations

import random
import traceback

import anyio

from hermes_rl.errors import HermesRLError, Unsupported
from hermes_rl.plan import RolloutPlan, skip_reason
from hermes_rl.results import (
    Phase,
    RolloutFailure,
    RolloutResult,
    RolloutStatus,
    RolloutTimings,
)
from hermes_rl.rollout_site import RolloutSite
from hermes_rl.trial import Trial

__all__ = ["Phase", "Rollout", "RolloutFailure", "RolloutResult", "RolloutStatus", "RolloutTimings"]

MAX_RETRY_DELAY_S = 300.0
"""Longest wait before a retry, also when a vendor asks for more."""
TRACEBACK_LINES = 30
"""Kept of the traceback of an error that is none of ours."""


class Rollout:
    """One task, tried until there is a result. ``run`` once.

    Args:
        site: What all rollouts of the engine share.
        plan: The task.
        attempt: 0-based attempt of this task.
        seed: Sampling seed.
    """

    def __init__(
        self,
        site: RolloutSite,
        plan: RolloutPlan,
        *,
        attempt: int = 0,
        seed: int | None = None,
    ) -> None:
        self._site = site
        self._plan = plan
        self._attempt = attempt
        self._seed = seed
        self._scope = anyio.CancelScope()
        self._trial: Trial | None = None
        self._retried: list[RolloutFailure] = []

    def cancel(self) -> None:
        """Tear down and make ``run`` return a result with status ``cancelled``."""
        self._scope.cancel()

    async def run(self) -> RolloutResult:
        """Run to a result. Every failure is in the result, but for those of the whole run.

        Raises:
            ConfigError: The configuration cannot work.
            ModelUnauthorized, ModelNotFound: No other rollout can succeed either.
        """
        reason = skip_reason(self._plan, self._site.backend)
        if reason is not None:
            return self._skip(reason)
        with self._scope:
            return await self._try_until_done()
        return self._report("cancelled")

    async def _try_until_done(self) -> RolloutResult:
        number = 0
        while True:
            number += 1
            is_last = number > self._site.config.rollout_retries
            self._trial = trial = Trial(
                self._site, self._plan, attempt=self._attempt, seed=self._seed, is_last=is_last
            )
            await trial.run()
            if trial.error is None:
                return self._report("finished", _teardown_failure(trial))
            if isinstance(trial.error, Unsupported) and trial.phase == "setup":
                return self._report("skipped", _failure(trial.error, trial.phase, number))
            failure = _failure(trial.error, trial.phase, number)
            if is_last or not _is_retryable(trial.error):
                return self._report("errored", failure)
            self._retried.append(failure)
            await anyio.sleep(self._delay_s(number, trial.error))

    def _delay_s(self, number: int, error: Exception) -> float:
        """Return the wait before the next try: exponential with jitter, or as the vendor asks."""
        asked_s: float = getattr(error, "retry_after_s", None) or 0.0
        backoff_s = self._site.retry_delay_s * 2.0 ** (number - 1) * random.uniform(0.5, 1.5)
        return min(MAX_RETRY_DELAY_S, max(asked_s, backoff_s))

    def _skip(self, reason: str) -> RolloutResult:
        return self._report(
            "skipped", RolloutFailure(kind="Unsupported", message=reason, phase="setup")
        )

    def _report(
        self, status: RolloutStatus, failure: RolloutFailure | None = None
    ) -> RolloutResult:
        trial = self._trial
        return RolloutResult(
            task_id=self._plan.description.id,
            attempt=self._attempt,
            status=status,
            reward=trial.reward if trial and status != "cancelled" else None,
            agent=trial.agent if trial else None,
            failure=failure,
            retried=tuple(self._retried),
            timings=trial.timings if trial else RolloutTimings(),
            tools=trial.schemas if trial else (),
            metadata=self._plan.description.metadata,
            missing_protections=trial.missing_protections if trial else (),
        )


def _is_retryable(error: Exception) -> bool:
    return isinstance(error, HermesRLError) and error.retryable


def _failure(error: Exception, phase: Phase, attempts: int) -> RolloutFailure:
    """Describe ``error``; one that is none of ours keeps the end of its traceback."""
    is_ours = isinstance(error, HermesRLError)
    cause = error.__cause__ if is_ours else error
    lines = traceback.format_exception(cause) if cause is not None else []
    message = str(error) if is_ours else f"{type(error).__name__}: {error}{_place(error)}"
    return RolloutFailure(
        kind=type(error).__name__,
        message=message,
        phase=phase,
        attempts=attempts,
        traceback="".join("".join(lines).splitlines(keepends=True)[-TRACEBACK_LINES:]),
    )


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""


def _teardown_failure(trial: Trial) -> RolloutFailure | None:
    error = trial.teardown_error
    return None if error is None else _failure(error, "teardown", 1)
