"""The JSONL file of scored groups that ``process`` writes.

One line per group (or per trajectory), in Atropos' keys and order, then ours; each line is
written and flushed to disk whole when its group is finished, so a crash loses nothing that was
finished. A torn last line (power loss, ``kill -9``) is cut off when the file is opened again.
The key ``hermes`` holds ``{"group": number, "item": id, "row": i, "rows": n}``: what a resumed
run looks at; a group whose rows are not all there is cut off too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson

from hermes_rl.atropos.encoding import encode_parts
from hermes_rl.atropos.groups import split_group
from hermes_rl.errors import RunLogError
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.runlog.files import AppendFile
from hermes_rl.types import JSONObject

__all__ = ["GroupFile", "in_atropos_order", "read_groups"]

_KEYS = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "messages",
    "group_overrides",
    "overrides",
    "images",
    "distill_token_ids",
    "distill_logprobs",
)
_writing = LoopLimiter(1)
"""One thread appends; lines must not mix."""


def in_atropos_order(group: Mapping[str, Any]) -> JSONObject:
    """Return the group with Atropos' keys first, all of them present, then the others."""
    first = {key: group.get(key) for key in _KEYS}
    return first | {key: value for key, value in group.items() if key not in first}


def read_groups(path: Path) -> Iterator[JSONObject]:
    """Yield the lines of a file; a torn last line is left out.

    Raises:
        RunLogError: A line before the last is no JSON object; names it.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError as error:
                raise RunLogError(f"{path}, line {number} is no JSON: {error}") from error
            yield value


def _whole_groups(path: Path) -> tuple[set[int], int]:
    """Return the numbers of complete groups and the length of the file up to the last of them."""
    done: set[int] = set()
    whole_bytes = position = 0
    with path.open("rb") as file:
        for line in file:
            position += len(line)
            mark = orjson.loads(line).get("hermes") or {}
            if mark.get("row", 0) + 1 == mark.get("rows", 1):
                whole_bytes = position
                if "group" in mark:
                    done.add(mark["group"])
    return done, whole_bytes


class GroupFile:
    """Appends groups to a file. Use it as a context manager.

    Attributes:
        path: The file.
        done: Numbers of the groups that were there when it was opened.
    """

    def __init__(self, path: Path, *, rows: str = "group") -> None:
        """Open, cutting off a torn last line.

        Args:
            path: Created with its folder if absent.
            rows: ``group`` or ``trajectory``.

        Raises:
            RunLogError: The file cannot be read or written.
        """
        self.path = path
        self._rows = rows
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = AppendFile(path)
        self.done, whole_bytes = _whole_groups(path)
        os.truncate(path, whole_bytes)

    def __enter__(self) -> GroupFile:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self._file.close()

    async def append(self, group: Mapping[str, Any], *, number: int, item: str) -> None:
        """Write one group, all of its lines or none.

        Raises:
            RunLogError: The disk is full or the file cannot be written.
        """
        parts = split_group(group) if self._rows == "trajectory" else [dict(group)]
        data: list[bytes] = []
        for index, part in enumerate(parts):
            mark = {"group": number, "item": item, "row": index, "rows": len(parts)}
            data += await encode_parts(in_atropos_order(part) | {"hermes": mark})
            data.append(b"\n")
        # Joined in the thread: many megabytes.
        await anyio.to_thread.run_sync(lambda: self._file.append(b"".join(data)), limiter=_writing)
