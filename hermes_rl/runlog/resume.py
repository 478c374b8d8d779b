"""What a continued run still owes, and whether its numbers may stand beside the recorded ones.

Resuming is a set difference over an append-only file: every planned (task, attempt) without a
finished or skipped record is run; errored ones are run again. Nothing is copied.
"""

from __future__ import annotations

import orjson

from hermes_rl.errors import ResumeMismatch
from hermes_rl.runlog.reader import Key, RecordedRun
from hermes_rl.runlog.schema import RunHeader

__all__ = ["check_same_run", "owed", "planned"]

MAX_NAMED = 8
"""Differences spelled out in an error; the rest is counted."""


def planned(header: RunHeader) -> list[Key]:
    """Return every (task, attempt) of a run: all tasks' first attempts, then the second ..."""
    return [(task_id, attempt) for attempt in range(header.attempts) for task_id in header.task_ids]


def owed(run: RecordedRun) -> list[Key]:
    """Return what is missing or errored, in the order planned."""
    settled = {key for key, record in run.records.items() if record.status != "errored"}
    return [key for key in planned(run.header) if key not in settled]


def check_same_run(recorded: RunHeader, current: RunHeader) -> None:
    """Check that results of ``current`` may be added to those of ``recorded``.

    Raises:
        ResumeMismatch: Something that affects scores differs; names each, old -> new.
    """
    before, after = _identity(recorded), _identity(current)
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    if not names:
        return
    lines = [f"  {name}: {_shown(before, name)} -> {_shown(after, name)}" for name in names]
    if len(lines) > MAX_NAMED:
        lines[MAX_NAMED:] = [f"  and {len(lines) - MAX_NAMED} more"]
    raise ResumeMismatch(
        f"Run {recorded.run_id} cannot be continued with other settings that affect scores:\n"
        + "\n".join(lines)
        + "\nLeave them as they were, or start a new run."
    )


def _identity(header: RunHeader) -> dict[str, object]:
    """Return all that makes two runs' scores comparable, by name."""
    return {
        **header.score_config,
        "task set": header.task_set,
        "task set version": header.task_set_version,
        "models": header.models,
        "tools": header.tools,
        **{f"task {task_id}": "planned" for task_id in header.task_ids},
        **{f"task {task_id} (digest)": digest for task_id, digest in header.task_digests.items()},
    }


def _shown(values: dict[str, object], name: str) -> str:
    return orjson.dumps(values[name], default=str).decode() if name in values else "absent"
