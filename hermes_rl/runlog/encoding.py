"""JSON lines that never fail on what a model or a task put into them."""

from __future__ import annotations

from typing import Any

import orjson

from hermes_rl.packed import Packed

__all__ = ["encode", "encode_pretty"]

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


def encode(value: object) -> bytes:
    """Return ``value`` as one JSON line, newline included.

    Packed numbers become lists. Values that JSON lacks become their text; a lone surrogate, which
    UTF-8 cannot hold, becomes U+FFFD.
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


def _storable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_text(key): _storable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_storable(inner) for inner in value]
    return value


def _plain(value: object) -> list[int] | list[float] | str:
    return value.tolist() if isinstance(value, Packed) else _text(value)


def _text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()
