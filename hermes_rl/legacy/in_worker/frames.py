"""Frames between the engine and a worker: 13 bytes of head, then the payload.

The head is big-endian: payload length (4 bytes), kind (1), id (8). The id is that of the call or
of the rollout's end that a frame belongs to, 0 otherwise. Payloads are JSON, but for RESULT: 4
bytes length of a JSON head, that head, and the content in UTF-8, which is never parsed here.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

__all__ = ["MAX_PAYLOAD_BYTES", "Frame", "FrameError", "Frames", "Kind", "pack", "read_frame"]

_HEAD = struct.Struct(">IBQ")
MAX_PAYLOAD_BYTES = 64 << 20
"""More than any result; a larger number is a broken stream."""


class Kind(enum.IntEnum):
    """What a frame says."""

    CALL = 1
    """Run a tool: ``{"tool", "arguments", "task", "call"}``."""
    CANCEL = 2
    """Interrupt a call."""
    END = 3
    """Free what a rollout holds: ``{"task"}``."""
    STOP = 4
    """End the process."""
    READY = 16
    """hermes-agent is imported: ``{"home"}``."""
    RESULT = 17
    """A call's thread has returned."""
    ENDED = 18
    """A rollout's things are freed."""
    FAILED = 19
    """hermes-agent cannot be imported: ``{"error"}``."""


class FrameError(Exception):
    """The stream is no stream of frames."""


class Frame(NamedTuple):
    """One frame."""

    kind: int
    id: int
    payload: bytes


def pack(kind: Kind, id: int = 0, payload: bytes = b"") -> bytes:
    """Return a frame's bytes."""
    return _HEAD.pack(len(payload), kind, id) + payload


def _head(data: bytes) -> tuple[int, int, int]:
    length, kind, id = _HEAD.unpack(data)
    if length > MAX_PAYLOAD_BYTES:
        raise FrameError(f"a frame of {length} bytes")
    return length, kind, id


class Frames:
    """Puts frames together from pieces of a stream."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that ``data`` completes.

        Raises:
            FrameError: The stream is broken.
        """
        self._pending += data
        while len(self._pending) >= _HEAD.size:
            length, kind, id = _head(bytes(self._pending[: _HEAD.size]))
            end = _HEAD.size + length
            if len(self._pending) < end:
                return
            payload = bytes(self._pending[_HEAD.size : end])
            del self._pending[:end]
            yield Frame(kind, id, payload)


def read_frame(read: Callable[[int], bytes]) -> Frame | None:
    """Read one frame; None at the end of the stream.

    Args:
        read: Blocks for exactly so many bytes; returns fewer only at the end.
    """
    head = read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    length, kind, id = _head(head)
    payload = read(length)
    return Frame(kind, id, payload) if len(payload) == length else None
