"""From a rollout's result to its record and transcript."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Literal

from hermes_rl.errors import RunLogError
from hermes_rl.results import RolloutFailure, RolloutResult
from hermes_rl.runlog.encoding import encode
from hermes_rl.runlog.schema import FailureRecord, RolloutRecord, TranscriptHeader
from hermes_rl.types import AgentResult

__all__ = ["record_of", "transcript_lines"]


def record_of(result: RolloutResult, *, transcript: str | None, finished_at: str) -> RolloutRecord:
    """Return the record of a finished, errored or skipped rollout.

    Args:
        result: What the engine gave.
        transcript: Path of the transcript relative to the run directory, None if there is none.
        finished_at: UTC, ISO 8601.

    Raises:
        RunLogError: The rollout was cancelled: that is no result and leaves no record.
    """
    agent = result.agent
    reward = result.reward
    return RolloutRecord(
        task_id=result.task_id,
        attempt=result.attempt,
        status=_recordable(result),
        reward=reward.value if reward else None,
        passed=result.passed,
        flags=list(reward.flags) if reward else [],
        evidence=dict(reward.evidence) if reward else {},
        stop_reason=agent.stop_reason.value if agent else None,
        turns=agent.turns_used if agent else 0,
        tool_calls=_tool_calls(agent) if agent else 0,
        tool_errors=len(agent.tool_errors) if agent else 0,
        usage=asdict(agent.usage) if agent else {},
        timings=_timings(result),
        counters=dict(agent.counters) if agent else {},
        failure=_failure(result.failure) if result.failure else None,
        retried=[_failure(failure) for failure in result.retried],
        metadata=dict(result.metadata),
        transcript=transcript,
        missing_protections=list(result.missing_protections),
        finished_at=finished_at,
    )


def _recordable(result: RolloutResult) -> Literal["finished", "errored", "skipped"]:
    if result.status == "cancelled":
        raise RunLogError(f"Rollout {result.task_id}:{result.attempt} was cancelled, not finished.")
    return result.status


def _failure(failure: RolloutFailure) -> FailureRecord:
    return FailureRecord(
        kind=failure.kind,
        message=failure.message,
        phase=failure.phase,
        attempts=failure.attempts,
        traceback=failure.traceback,
    )


def _tool_calls(agent: AgentResult) -> int:
    return sum(len(message.get("tool_calls") or ()) for message in agent.messages)


def _timings(result: RolloutResult) -> dict[str, float]:
    seconds = asdict(result.timings)
    if result.agent:
        seconds |= asdict(result.agent.timings)
    return {name.removesuffix("_s"): value for name, value in seconds.items()}


def transcript_lines(result: RolloutResult) -> Iterator[bytes]:
    """Yield the lines of a transcript, one message at a time.

    Only one message is ever serialised at once, so a long conversation neither holds the
    interpreter for long nor exists twice in memory.
    """
    agent = result.agent
    if agent is None:
        return
    header = TranscriptHeader(
        task_id=result.task_id,
        attempt=result.attempt,
        tools=list(result.tools),
        error=agent.error,
    )
    yield encode(header.model_dump())
    for message in agent.messages:
        yield encode({"message": message})
    for error in agent.tool_errors:
        yield encode({"tool_error": error})
    for node in (agent.managed_state or {}).get("nodes", ()):
        yield encode({"sequence": node})
