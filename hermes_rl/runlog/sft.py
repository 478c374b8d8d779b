"""Supervised fine-tuning rows from recorded rollouts, in the OpenAI-messages shape.

One JSON object per line: ``messages`` (role, content, and where there are any ``tool_calls``,
``tool_call_id``, ``name``, ``reasoning_content``), ``tools`` (the schemas as JSON text, as TRL
takes them), ``score``, ``task_id``. Every value has one type in every row, so that
``datasets.load_dataset("json", data_files=...)`` reads any file of them: ``content`` is text or
null, ``arguments`` is JSON text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from hermes_rl.errors import RunLogError
from hermes_rl.runlog.files import RESULTS
from hermes_rl.runlog.reader import read_run, read_transcript
from hermes_rl.types import JSONObject, Message

__all__ = ["sft_row", "sft_rows"]


def _text(content: Any) -> str | None:
    if content is None or isinstance(content, str):
        return content
    return "\n".join(
        str(part.get("text") or f"[{part.get('type', 'part')}]")
        if isinstance(part, Mapping)
        else str(part)
        for part in content
    )


def _call(call: Mapping[str, Any]) -> JSONObject:
    function = call["function"]
    arguments = function["arguments"]
    if not isinstance(arguments, str):
        arguments = orjson.dumps(arguments).decode()
    return {
        "id": str(call.get("id", "")),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _message(message: Message) -> JSONObject:
    row: JSONObject = {"role": message["role"], "content": _text(message.get("content"))}
    if message.get("tool_calls"):
        row["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    for key in ("tool_call_id", "name", "reasoning_content"):
        if isinstance(message.get(key), str):
            row[key] = message[key]
    return row


def sft_row(
    messages: Sequence[Message], tools: Sequence[JSONObject], *, score: float, task_id: str
) -> JSONObject:
    """Return one row; see the module."""
    return {
        "messages": [_message(message) for message in messages],
        "tools": orjson.dumps(list(tools)).decode(),
        "score": float(score),
        "task_id": task_id,
    }


def sft_rows(source: Path, *, min_score: float | None = None) -> Iterator[JSONObject]:
    """Yield a row per recorded rollout that scored at least ``min_score``.

    Args:
        source: A run directory of ``evaluate``, or a JSONL file of ``process``.
        min_score: None = all.

    Raises:
        RunLogError: ``source`` is neither, or cannot be read.
    """
    rows = _of_run(source) if source.is_dir() else _of_groups(source)
    return (row for row in rows if min_score is None or row["score"] >= min_score)


def _of_run(directory: Path) -> Iterator[JSONObject]:
    if not (directory / RESULTS).is_file():
        raise RunLogError(f"{directory} is no run directory: it has no {RESULTS}.")
    for record in read_run(directory).records.values():
        if record.status == "finished" and record.transcript:
            transcript = read_transcript(directory, record.task_id, record.attempt)
            yield sft_row(
                transcript.messages,
                transcript.header.tools,
                score=record.reward or 0.0,
                task_id=record.task_id,
            )


def _of_groups(path: Path) -> Iterator[JSONObject]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.endswith(b"\n"):
                    yield from _rows_of(path, number, line)
    except OSError as error:
        raise RunLogError(f"{path} cannot be read: {error.strerror}.") from error


def _rows_of(path: Path, number: int, line: bytes) -> list[JSONObject]:
    group = _decoded(path, number, line)
    try:
        return list(_of_group(group))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunLogError(f"{path}, line {number} is not as 'process' writes it.") from error


def _decoded(path: Path, number: int, line: bytes) -> JSONObject:
    try:
        group: JSONObject = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RunLogError(f"{path}, line {number} is no JSON: {error}") from error
    values: JSONObject = group if isinstance(group, dict) else {}
    sizes = [
        len(values[key]) for key in ("messages", "scores") if isinstance(values.get(key), list)
    ]
    if len(sizes) != 2 or sizes[0] != sizes[1]:
        raise RunLogError(
            f"{path}, line {number} holds no messages with scores; is it a file of 'process', "
            "with include_messages?"
        )
    return group


def _of_group(group: JSONObject) -> Iterator[JSONObject]:
    item = str((group.get("hermes") or {}).get("item", ""))
    for messages, score in zip(group["messages"], group["scores"], strict=True):
        yield sft_row(messages, group.get("tools") or [], score=score, task_id=item)
