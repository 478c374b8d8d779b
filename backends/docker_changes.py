"""What differs from a container's image, taken in piece by piece.

An agent may leave a million files. The engine answers with one JSON array, whose parsing in one go
would hold up every other rollout for seconds.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import anyio.lowlevel
import orjson

from hermes_rl.backends.docker_errors import EngineFailure
from hermes_rl.sandbox import Change

__all__ = ["read_changes"]

BATCH_BYTES = 64 * 1024
"""Parsed between two steps of the event loop: about 1,000 paths, 2 ms."""
_BETWEEN = b'},{"'
_NAMES = (b'Kind"', b'Path"')
_KINDS: dict[int, Literal["added", "modified", "deleted"]] = {
    0: "modified",
    1: "added",
    2: "deleted",
}
"""The engine's kinds of change."""


async def read_changes(pieces: AsyncIterator[bytes], *, without: str = "") -> list[Change]:
    """Parse the engine's answer while it comes; the path ``without`` is left out.

    Raises:
        EngineFailure: It is no list of changes.
    """
    found: list[Change] = []
    pending = b""
    async for piece in pieces:
        pending += piece
        if len(pending) >= BATCH_BYTES and (end := _last_end(pending)):
            found += _parsed(pending[:end] + b"]", without)
            pending = b"[" + pending[end + 1 :]
            await anyio.lowlevel.checkpoint()
    found += _parsed(pending, without)
    return found


def _last_end(text: bytes) -> int:
    """Return where the last whole entry ends that another one follows; 0 if there is none.

    The bytes between two entries cannot be part of a path: there its quote would be escaped, and
    a quote that ends a path is not followed by a name.
    """
    found = text.rfind(_BETWEEN)
    while found >= 0:
        after = found + len(_BETWEEN)
        if text[after : after + 5] in _NAMES:
            return found + 1
        found = text.rfind(_BETWEEN, 0, found)
    return 0


def _parsed(text: bytes, without: str) -> list[Change]:
    try:
        entries: list[dict[str, Any]] = orjson.loads(text) or []
        changes = (Change(entry["Path"], _KINDS[entry["Kind"]]) for entry in entries)
        return [change for change in changes if change.path != without]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise EngineFailure(0, f"the engine sent no list of changes: {error!r}") from error
