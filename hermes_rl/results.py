"""What a rollout produced: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_rl.types import AgentResult, JSONObject, Reward

__all__ = ["Phase", "RolloutFailure", "RolloutResult", "RolloutStatus", "RolloutTimings"]

RolloutStatus = Literal["finished", "errored", "cancelled", "skipped"]
Phase = Literal["setup", "agent", "reward", "teardown"]


@dataclass(slots=True, frozen=True, kw_only=True)
class RolloutFailure:
    """Why a rollout is errored or skipped.

    Attributes:
        kind: Class name of the error, e.g. ``ImageNotFound``.
        message: One sentence.
        phase: ``setup``, ``agent``, ``reward`` or ``teardown``.
        attempts: How often the rollout was tried.
        traceback: End of the traceback where the error was none of ours (a bug in reward code,
            say), else "".
    """

    kind: str
    message: str
    phase: Phase
    attempts: int = 1
    traceback: str = ""


@dataclass(slots=True, frozen=True, kw_only=True)
class RolloutTimings:
    """Seconds per phase of one rollout; ``queued_s`` is waiting for a sandbox permit."""

    queued_s: float = 0.0
    setup_s: float = 0.0
    agent_s: float = 0.0
    reward_s: float = 0.0
    teardown_s: float = 0.0


@dataclass(slots=True, frozen=True, kw_only=True)
class RolloutResult:
    """Everything a rollout produced.

    Attributes:
        task_id: The task's id.
        attempt: 0-based attempt of this task.
        status: ``finished`` (scored), ``errored`` (infrastructure), ``skipped`` (a capability is
            missing) or ``cancelled``.
        reward: The score, None unless ``finished``. Beside ``errored`` it is what the verifier
            said after the model's API had failed: kept, never counted.
        agent: What the agent did, None if it never started.
        failure: Set when ``errored`` or ``skipped``; beside ``finished`` it says that the
            sandbox could not be removed (phase ``teardown``).
        retried: Failures of the tries before the one reported here.
        timings: Seconds per phase.
        tools: Tool schemas the model was given.
        metadata: The task's metadata.
        missing_protections: Reward-phase protections that the backend lacks.
    """

    task_id: str
    attempt: int = 0
    status: RolloutStatus = "finished"
    reward: Reward | None = None
    agent: AgentResult | None = None
    failure: RolloutFailure | None = None
    retried: tuple[RolloutFailure, ...] = ()
    timings: RolloutTimings = RolloutTimings()
    tools: tuple[JSONObject, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    missing_protections: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The reward's value if finished; else 0.0: errors count as zero in the headline."""
        return self.reward.value if self.reward and self.status == "finished" else 0.0

    @property
    def passed(self) -> bool:
        """Whether the reward is at least 1."""
        return self.score >= 1.0
