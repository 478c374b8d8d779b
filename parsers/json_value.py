"""JSON inside model output: where a value ends, and strict decoding.

A JSON body ends where its value ends, never at the first end marker: markers inside strings are
data. Decoding is as strict as the servers are: no NaN, no single quotes, no trailing commas, no
raw newlines in strings. What Python's decoder would let through or choke on (infinities, nesting
past the stack, integers past the digit limit) is refused the same way.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

__all__ = ["BadJSON", "Extent", "decode", "decode_arguments", "encode", "extent", "read_name"]

_MAX_DEPTH = 512
_TOKEN = re.compile(
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'  # a whole string
    r"|[\[\]{}]"
    r"|[ \t\r\n,:0-9+\-.eEtrufalsn]++",  # everything else that JSON can have outside a string
    re.DOTALL,
)
_KINDS = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAME = re.compile(
    r"\s*+\[?+\s*+\{\s*+"
    r'(?:"(?:id|type)"\s*+:\s*+"[^"\\]*+"\s*+,\s*+)*+'
    r'"name"\s*+:\s*+("[^"\\]*+(?:\\.[^"\\]*+)*+")',
    re.DOTALL,
)


class BadJSON(ValueError):
    """Text that is not the JSON that was needed; the message says what and where.

    ``code`` is the word for :class:`~hermes_rl.types.InvalidCall`.
    """

    def __init__(self, message: str, code: str = "json") -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True, frozen=True)
class Extent:
    """How far a bracketed value reaches.

    Attributes:
        end: One past the closing bracket; if not closed, where the scan had to stop: at the first
            character that JSON cannot have outside a string, or at the end of the text.
        is_closed: Whether the brackets balance.
        depth: Deepest nesting.
    """

    end: int
    is_closed: bool
    depth: int


def extent(text: str, start: int) -> Extent:
    """Return the extent of the object or array that begins at ``start``."""
    level = depth = 0
    position = start
    while match := _TOKEN.match(text, position):
        position = match.end()
        first = text[match.start()]
        if first in "{[":
            level += 1
            depth = max(depth, level)
        elif first in "}]":
            level -= 1
            if level <= 0:
                return Extent(position, True, depth)
    if position < len(text) and text[position] == '"':
        position = len(text)  # an unfinished string runs to the end
    return Extent(position, False, depth)


def decode(text: str, *, depth: int | None = None) -> Any:
    """Decode strict JSON.

    Args:
        text: One JSON value.
        depth: Its nesting, if known from :func:`extent`.

    Raises:
        BadJSON: Not strict JSON, or nested or sized beyond what can be decoded.
    """
    if depth is None and text.lstrip()[:1] in ("{", "["):
        depth = extent(text, len(text) - len(text.lstrip())).depth
    if depth is not None and depth > _MAX_DEPTH:
        raise BadJSON(f"nested {depth} levels deep, at most {_MAX_DEPTH} are possible")
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise BadJSON(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise BadJSON("nested too deep") from None
    except ValueError as error:
        raise BadJSON(str(error)) from None


def encode(value: Any) -> str:
    """Return compact-enough JSON text that UTF-8 can hold.

    Lone surrogates become U+FFFD.

    Raises:
        BadJSON: The value holds an infinity (``1e999``) or a number too long to print.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise BadJSON(f"cannot be written as JSON: {error}") from None
    return _SURROGATE.sub("\ufffd", text)


def decode_arguments(value: Any) -> str:
    """Return the JSON text of a call's arguments.

    None and blank text are no arguments; a string that holds a JSON object is decoded once.

    Raises:
        BadJSON: Anything that is not an object.
    """
    if isinstance(value, str) and value.strip():
        value = decode(value)
    elif value is None or isinstance(value, str):
        value = {}
    if not isinstance(value, dict):
        kind = _KINDS.get(type(value), "a number")
        raise BadJSON(f"arguments must be a JSON object, not {kind}", "arguments")
    return encode(value)


def read_name(text: str, start: int) -> str | None:
    """Return the ``name`` of a call object that is too broken to decode, if it stands in front."""
    match = _NAME.match(text, start)
    if match is None:
        return None
    try:
        return str(decode(match[1])) or None
    except BadJSON:
        return None


def _refuse(constant: str) -> Any:
    raise BadJSON(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
