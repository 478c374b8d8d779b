"""Frames on the channel between the engine and an outpost.

A frame is a 9-byte header ``>BII`` (type, id, payload length) and its payload. ``id`` names a
request; replies carry the id of their request. Unknown ids are ignored; an unknown type or a
length above :data:`MAX_PAYLOAD_BYTES` closes the channel, because nothing after it can be trusted.

Structured payloads are *fields*: for each, one byte of name length, the name, four bytes of
value length, the value. Values are bytes, so any path or argument survives. A *list* is items,
each after four bytes of length. ``outpost.py`` carries its own copy of these constants, since it
runs where nothing of ours can be imported; a test holds the two against each other.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "HEADER",
    "MAX_PAYLOAD_BYTES",
    "PROTOCOL_VERSION",
    "REPLIES",
    "FrameError",
    "FrameParser",
    "Kind",
    "frame",
    "iterate_list",
    "pack_fields",
    "pack_list",
    "to_bytes",
    "to_text",
    "unpack_fields",
    "unpack_list",
]

PROTOCOL_VERSION = 1
HEADER = struct.Struct(">BII")
MAX_PAYLOAD_BYTES = 1 << 20
"""Largest payload; bigger data travels in several frames. Bounds memory against a hostile peer."""
_LENGTH = struct.Struct(">I")


class Kind(enum.IntEnum):
    """Frame types. Below 64: engine to outpost; from 64: outpost to engine."""

    RUN = 1
    STDIN = 2
    STDIN_EOF = 3
    KILL = 4
    CREDIT = 5
    PING = 6
    READ = 7
    WRITE = 8
    DATA = 9
    END = 10
    LIST = 11
    PACK = 12
    UNPACK = 13
    KILL_ALL = 14
    SHUTDOWN = 15
    RESIZE = 16
    HELLO = 64
    STDOUT = 65
    STDERR = 66
    RESULT = 67
    FAILED = 68
    PONG = 69
    CHUNK = 70
    DONE = 71
    STARTED = 72
    ROOM = 73
    TAIL = 74
    BYE = 75


REPLIES = frozenset(kind for kind in Kind if kind >= Kind.HELLO)


class FrameError(ValueError):
    """The peer sent something that is not the protocol."""


def frame(kind: int, id: int, payload: bytes = b"") -> bytes:
    """Return one frame, ready to send."""
    return HEADER.pack(kind, id, len(payload)) + payload


class FrameParser:
    """Cuts a byte stream into frames; never holds more than one frame and one read.

    Args:
        accept: Frame types the peer may send.
    """

    def __init__(self, accept: frozenset[Kind] = REPLIES) -> None:
        self._accept = frozenset(int(kind) for kind in accept)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield (type, id, payload) of every frame that ``data`` completes.

        Raises:
            FrameError: Unknown type or oversized payload; the channel must be closed.
        """
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= HEADER.size:
                kind, id, length = HEADER.unpack_from(buffer, start)
                if kind not in self._accept or length > MAX_PAYLOAD_BYTES:
                    raise FrameError(f"frame of type {kind} with {length} bytes")
                end = start + HEADER.size + length
                if end > len(buffer):
                    break
                payload = bytes(memoryview(buffer)[start + HEADER.size : end])
                start = end
                yield kind, id, payload
        finally:
            del buffer[:start]


def to_bytes(text: str) -> bytes:
    """Encode text for the wire; lone surrogates (bytes that were no UTF-8) survive."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """Decode a path from the wire; ``to_bytes`` gives back the same bytes."""
    return data.decode("utf-8", "surrogateescape")


def pack_fields(fields: Mapping[str, bytes | str | int]) -> bytes:
    """Encode named values; numbers become decimal text."""
    parts = []
    for name, value in fields.items():
        data = value if isinstance(value, bytes) else to_bytes(str(value))
        parts.append(b"%c%s%s%s" % (len(name), name.encode(), _LENGTH.pack(len(data)), data))
    return b"".join(parts)


def unpack_fields(payload: bytes) -> dict[str, bytes]:
    """Decode named values.

    Raises:
        FrameError: The payload is not well formed.
    """
    fields: dict[str, bytes] = {}
    position = 0
    try:
        while position < len(payload):
            start = position + 1
            name_end = start + payload[position]
            value_start = name_end + _LENGTH.size
            (length,) = _LENGTH.unpack_from(payload, name_end)
            position = value_start + length
            fields[payload[start:name_end].decode("ascii")] = payload[value_start:position]
    except (struct.error, UnicodeDecodeError) as error:
        raise FrameError(f"malformed fields: {error}") from None
    if position != len(payload):
        raise FrameError("fields end in the middle of a value")
    return fields


def pack_list(items: Iterable[bytes]) -> bytes:
    """Encode a list of byte strings."""
    return b"".join(_LENGTH.pack(len(item)) + item for item in items)


def unpack_list(payload: bytes) -> list[bytes]:
    """Decode a list of byte strings.

    Raises:
        FrameError: The payload is not well formed.
    """
    return list(iterate_list(payload))


def iterate_list(payload: bytes) -> Iterator[bytes]:
    """Decode a list of byte strings one by one, for whoever must not take all at once.

    Raises:
        FrameError: The payload is not well formed.
    """
    position = 0
    while position < len(payload):
        if position + _LENGTH.size > len(payload):
            raise FrameError("list ends in the middle of a length")
        (length,) = _LENGTH.unpack_from(payload, position)
        start = position + _LENGTH.size
        position = start + length
        if position > len(payload):
            raise FrameError("list ends in the middle of an item")
        yield payload[start:position]
