"""The records of a run directory, versioned.

::

    RUN_DIR/
      config.json          resolved configuration, secrets removed
      results.jsonl        line 1 the header; then one record per finished rollout, append-only
      transcripts/<task>/<attempt>.jsonl   line 1 a header, then one line per message
      metrics.json         the summary, in Atropos' layout plus ours
      samples.jsonl        in Atropos' layout: one line per rollout
      .lock                held while a process writes here

A torn last line (power loss, kill) is tolerated by every reader. A rollout that was cut short by
a signal writes nothing: it is simply missing, and ``--resume`` runs it. A rollout that is run
again has several records; the last one counts.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "SCHEMA_VERSION",
    "FailureRecord",
    "ResumeRecord",
    "RolloutRecord",
    "RunHeader",
    "TranscriptHeader",
]

SCHEMA_VERSION = 1


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunHeader(_Record):
    """First line of ``results.jsonl``."""

    kind: Literal["header"] = "header"
    schema_version: int = SCHEMA_VERSION
    run_id: str
    created_at: str
    """UTC, ISO 8601."""
    engine_version: str
    task_set: str
    task_set_version: str | None = None
    models: list[str]
    attempts: int
    task_ids: list[str]
    """Every task planned, in order."""
    task_digests: dict[str, str] = Field(default_factory=dict)
    """Content digest per task, where the task set gives one."""
    tools: list[str]
    """Resolved tool names."""
    score_config: dict[str, Any]
    """Fields that affect scores, by dotted name (``env.max_agent_turns``)."""


class ResumeRecord(_Record):
    """Says that the records after it come from another process."""

    kind: Literal["resumed"] = "resumed"
    resumed_at: str
    """UTC, ISO 8601."""
    engine_version: str


class FailureRecord(_Record):
    """See :class:`hermes_rl.results.RolloutFailure`."""

    kind: str
    message: str
    phase: str
    attempts: int = 1
    traceback: str = ""


class RolloutRecord(_Record):
    """One finished, errored or skipped rollout."""

    kind: Literal["rollout"] = "rollout"
    task_id: str
    attempt: int
    status: Literal["finished", "errored", "skipped"]
    reward: float | None = None
    passed: bool = False
    flags: list[str] = Field(default_factory=list)
    evidence: dict[str, Any] = Field(default_factory=dict)
    stop_reason: str | None = None
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    usage: dict[str, float] = Field(default_factory=dict)
    timings: dict[str, float] = Field(default_factory=dict)
    """Seconds: queued, setup, agent, reward, teardown, model, tool, waiting."""
    counters: dict[str, int] = Field(default_factory=dict)
    failure: FailureRecord | None = None
    retried: list[FailureRecord] = Field(default_factory=list)
    """Failures of the tries before the one recorded."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    transcript: str | None = None
    """Path of the transcript relative to the run directory."""
    missing_protections: list[str] = Field(default_factory=list)
    finished_at: str
    """UTC, ISO 8601."""


class TranscriptHeader(_Record):
    """First line of a transcript.

    Lines after it are ``{"message": {...}}`` in order, then ``{"tool_error": {...}}`` and, from
    token-exact models, ``{"sequence": {tokens, masked_tokens, logprobs, metadata}}``.
    """

    kind: Literal["transcript"] = "transcript"
    schema_version: int = SCHEMA_VERSION
    task_id: str
    attempt: int
    tools: list[dict[str, Any]]
    """Schemas that the model was given."""
    error: str | None = None
    """What failed behind a MODEL_ERROR or SANDBOX_LOST."""
