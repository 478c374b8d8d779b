"""JSON lines that never fail on what a model or a task put into them."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import orjson

from hermes_rl.packed import Packed

__all__ = ["encode", "encode_pretty"]

DEEPEST = 100
"""Levels of lists and mappings that are written where something cannot be as it is; orjson writes
at most 254."""
_INTEGER_BITS = 63
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def encode(value: object) -> bytes:
    """Return ``value`` as one JSON line, newline included.

    Packed numbers become lists. Values that JSON lacks, integers beyond 64 bits too, become their
    text; a lone surrogate, which UTF-8 cannot hold, becomes a question mark; what is nested more
    than :data:`DEEPEST` levels deep, or in itself, becomes a remark.
    """
    return _dump(value, _OPTIONS | orjson.OPT_APPEND_NEWLINE)


def encode_pretty(value: object) -> bytes:
    """Return ``value`` as indented JSON."""
    return _dump(value, _OPTIONS | orjson.OPT_APPEND_NEWLINE | orjson.OPT_INDENT_2)


def _dump(value: object, options: int) -> bytes:
    try:
        return orjson.dumps(value, default=_plain, option=options)
    except TypeError:
        return orjson.dumps(_storable(value), default=_plain, option=options)


def _storable(value: Any, outer: tuple[int, ...] = ()) -> Any:
    """Return what can be written in place of ``value``, part by part.

    Args:
        value: Anything.
        outer: Identities of what it lies in.
    """
    if isinstance(value, str) or (isinstance(value, int) and value.bit_length() > _INTEGER_BITS):
        return _text(value)
    if isinstance(value, enum.Enum):
        return _storable(value.value, outer)
    if id(value) in outer or len(outer) > DEEPEST:
        return "(nested too deeply)"
    outer = (*outer, id(value))
    if isinstance(value, dict):
        return {_text(key): _storable(inner, outer) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(inner, outer) for inner in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _storable(getattr(value, name), outer) for name in names}
    return value


def _plain(value: object) -> list[int] | list[float] | str:
    return value.tolist() if isinstance(value, Packed) else _text(value)


def _text(value: object) -> str:
    try:
        text = str(value)
    except Exception as error:  # an author's object may raise anything
        text = f"({type(value).__name__} without a text: {type(error).__name__})"
    return text.encode("utf-8", "replace").decode()
