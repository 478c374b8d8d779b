"""Reads the build output out of BuildKit's trace messages.

They are protocol buffers of the type ``moby.buildkit.v1.StatusResponse``: field 1 holds vertexes
(steps; name is field 3, error field 7), field 3 logs (text is field 4). Nothing else is needed, so
a reader of the wire format suffices.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

__all__ = ["trace_output"]

_VERTEXES, _LOGS = 1, 3
_VERTEX_NAME, _VERTEX_STARTED, _VERTEX_COMPLETED, _VERTEX_ERROR = 3, 5, 6, 7
_LOG_TEXT = 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def trace_output(aux: str) -> str:
    """Return the steps begun, the text printed and the errors of one trace message.

    What cannot be read gives an empty text: it is only ever shown to people.
    """
    try:
        return "".join(_lines(base64.b64decode(aux)))
    except (binascii.Error, ValueError, IndexError):
        return ""


def _lines(data: bytes) -> Iterator[str]:
    for number, value in _fields(data):
        if number == _VERTEXES:
            yield from _vertex(dict(_fields(value)))
        elif number == _LOGS:
            yield dict(_fields(value)).get(_LOG_TEXT, b"").decode("utf-8", "replace")


def _vertex(fields: dict[int, bytes]) -> Iterator[str]:
    if _VERTEX_ERROR in fields:
        yield fields[_VERTEX_ERROR].decode("utf-8", "replace") + "\n"
    elif _VERTEX_STARTED in fields and _VERTEX_COMPLETED not in fields:
        yield fields.get(_VERTEX_NAME, b"").decode("utf-8", "replace") + "\n"


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of each length-delimited field; skip the others."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            _, position = _varint(data, position)
        elif kind == _BYTES:
            size, start = _varint(data, position)
            position = start + size
            yield number, data[start:position]
        elif kind in (_FIXED64, _FIXED32):
            position += 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position
