"""Reading a run directory, also one whose process was killed in the middle of a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from pydantic import ValidationError

from hermes_rl.errors import RunLogError
from hermes_rl.runlog.files import CONFIG, METRICS, RESULTS, transcript_name
from hermes_rl.runlog.schema import (
    SCHEMA_VERSION,
    ResumeRecord,
    RolloutRecord,
    RunHeader,
    TranscriptHeader,
)
from hermes_rl.types import JSONObject, Message

__all__ = [
    "Key",
    "RecordedRun",
    "Transcript",
    "read_config",
    "read_metrics",
    "read_run",
    "read_transcript",
]

Key = tuple[str, int]
"""A task id and an attempt."""


@dataclass(slots=True, frozen=True)
class RecordedRun:
    """What ``results.jsonl`` holds.

    Attributes:
        directory: The run directory.
        header: The first line.
        records: The record that counts for each (task, attempt), in the order of their end.
        resumed: One entry per continuation.
        torn: Whether the last line was cut short; it is not in ``records``.
    """

    directory: Path
    header: RunHeader
    records: dict[Key, RolloutRecord]
    resumed: list[ResumeRecord] = field(default_factory=list)
    torn: bool = False


@dataclass(slots=True, frozen=True)
class Transcript:
    """One rollout's conversation.

    Attributes:
        header: The first line.
        messages: The whole conversation.
        tool_errors: Failed calls, as dictionaries.
        sequences: Token sequences of token-exact models.
    """

    header: TranscriptHeader
    messages: list[Message]
    tool_errors: list[JSONObject]
    sequences: list[JSONObject]


def read_run(directory: Path) -> RecordedRun:
    """Read the results of a run, finished or not. Blocks: call it off the event loop.

    Raises:
        RunLogError: There is no run, it was written by a newer version, or a line in the middle
            is damaged (named by its number).
    """
    path = directory / RESULTS
    torn = False
    header: RunHeader | None = None
    records: dict[Key, RolloutRecord] = {}
    resumed: list[ResumeRecord] = []
    for number, line, is_last in _lines(path):
        if not line.endswith(b"\n"):
            torn = True
            break
        try:
            value = orjson.loads(line)
            if header is None:
                header = _header(value, path)
            elif value["kind"] == "resumed":
                resumed.append(ResumeRecord.model_validate(value))
            else:
                record = RolloutRecord.model_validate(value)
                records.pop((record.task_id, record.attempt), None)
                records[record.task_id, record.attempt] = record
        except (orjson.JSONDecodeError, ValidationError, LookupError, TypeError) as error:
            if is_last:
                torn = True
                break
            raise RunLogError(f"{path}, line {number} is damaged: {_first_line(error)}") from error
    if header is None:
        raise RunLogError(f"{path} holds no run: its first line is missing or incomplete.")
    return RecordedRun(directory, header, records, resumed, torn)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _lines(path: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield number, bytes and whether it is the last one, for every line."""
    try:
        with path.open("rb") as file:
            previous: bytes | None = None
            number = 0
            for line in file:
                if previous is not None:
                    yield number, previous, False
                previous = line
                number += 1
            if previous is not None:
                yield number, previous, True
    except FileNotFoundError as error:
        raise RunLogError(f"{path.parent} is no run directory: it has no {path.name}.") from error
    except OSError as error:
        raise RunLogError(f"{path} cannot be read: {error.strerror or error}.") from error


def _header(value: JSONObject, path: Path) -> RunHeader:
    version = value["schema_version"]
    if value["kind"] == "header" and isinstance(version, int) and version > SCHEMA_VERSION:
        raise RunLogError(
            f"{path} was written in format {version}; this version reads up to {SCHEMA_VERSION}. "
            f"Update hermes_rl (the run used {value.get('engine_version', 'a newer one')})."
        )
    return RunHeader.model_validate(value)


def read_config(directory: Path) -> JSONObject:
    """Read ``config.json``.

    Raises:
        RunLogError: It is missing or damaged.
    """
    return _read_object(directory / CONFIG)


def read_metrics(directory: Path) -> JSONObject | None:
    """Read ``metrics.json``; None where the run has none yet.

    Raises:
        RunLogError: It is damaged.
    """
    path = directory / METRICS
    return _read_object(path) if path.exists() else None


def _read_object(path: Path) -> JSONObject:
    try:
        value = orjson.loads(path.read_bytes())
    except OSError as error:
        raise RunLogError(f"{path} cannot be read: {error.strerror or error}.") from error
    except orjson.JSONDecodeError as error:
        raise RunLogError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise RunLogError(f"{path} is damaged: it holds no object.")
    return value


def read_transcript(directory: Path, task_id: str, attempt: int) -> Transcript:
    """Read one rollout's conversation. Blocks.

    Raises:
        RunLogError: There is none, or it is damaged.
    """
    path = directory / transcript_name(task_id, attempt)
    header: TranscriptHeader | None = None
    parts: dict[str, list[JSONObject]] = {"message": [], "tool_error": [], "sequence": []}
    try:
        for _, line, _ in _lines(path):
            value = orjson.loads(line)
            if header is None:
                header = TranscriptHeader.model_validate(value)
            else:
                ((kind, content),) = value.items()
                parts[kind].append(content)
    except (orjson.JSONDecodeError, ValidationError, LookupError, ValueError) as error:
        raise RunLogError(f"{path} is damaged: {_first_line(error)}") from error
    if header is None:
        raise RunLogError(f"{path} is damaged: it is empty.")
    return Transcript(header, parts["message"], parts["tool_error"], parts["sequence"])
