r"""Python literals inside model output: where a value ends, and its value. Nothing is executed.

Read by hand rather than with ``ast``: that one needs to be told where the literal ends, recurses,
and warns about ``\d``. Tuples become lists, as JSON has it; sets, bytes, f-strings, complex
numbers and names other than the constants are refused.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.parsers.scan import skip_space

__all__ = ["BadLiteral", "read_literal"]

_MAX_DEPTH = 512
_STRING = re.compile(
    r"([rRuU]?)(?:"
    r"'''((?:[^'\\]++|\\.|'(?!''))*+)'''"
    r'|"""((?:[^"\\]++|\\.|"(?!""))*+)"""'
    r"|'(?!'')([^'\\\n]*+(?:\\.[^'\\\n]*+)*+)'"
    r'|"(?!"")([^"\\\n]*+(?:\\.[^"\\\n]*+)*+)")',
    re.DOTALL,
)
_STRING_START = re.compile(r"[rRuU]?['\"]")
_NUMBER = re.compile(
    r"(?:0[xX][0-9a-fA-F_]++|0[oO][0-7_]++|0[bB][01_]++"
    r"|([0-9][0-9_]*+\.?[0-9_]*+|\.[0-9][0-9_]*+)([eE][-+]?[0-9]++)?)(?![\w.])"
)
_SIGNS = re.compile(r"[-+\s]*+")
_WORD = re.compile(r"[^\W\d]\w*+")
_ESCAPE = re.compile(
    r"\\(?:\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^{}]{1,80}\}|.)",
    re.DOTALL,
)
_SIMPLE = dict(zip("\\'\"abfnrtv\n", "\\'\"\a\b\f\n\r\t\v", strict=False)) | {"\n": ""}
_CONSTANTS = {"True": True, "False": False, "None": None}
_CONSTANTS |= {"true": True, "false": False, "null": None}
_CLOSERS = {"[": "]", "(": ")", "{": "}"}


class BadLiteral(ValueError):
    """Not a literal; ``position`` is where reading failed (the text's length: it was cut off)."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


@dataclass(slots=True)
class _Container:
    """A list, tuple or dictionary that is being read."""

    opener: str
    items: list[Any] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    has_comma: bool = False

    def close(self, position: int) -> Any:
        if self.opener == "{":
            if len(self.keys) != len(self.items):
                raise BadLiteral("a set is not JSON", position)
            return dict(zip(self.keys, self.items, strict=True))
        if self.opener == "(" and len(self.items) == 1 and not self.has_comma:
            return self.items[0]
        return self.items


def read_literal(text: str, position: int) -> tuple[Any, int]:
    """Read the literal at ``position``; return its value and one past its end.

    Raises:
        BadLiteral: There is none, or it is not closed.
    """
    stack: list[_Container] = []
    while True:
        position = skip_space(text, position)
        opener = text[position : position + 1]
        if opener and opener in _CLOSERS:
            if len(stack) >= _MAX_DEPTH:
                raise BadLiteral(f"nested more than {_MAX_DEPTH} levels deep", position)
            stack.append(_Container(opener))
            position = skip_space(text, position + 1)
            if not text.startswith(_CLOSERS[opener], position):
                continue
            value, position = stack.pop().close(position), position + 1
        else:
            value, position = _scalar(text, position)
        if not stack:
            return value, position
        value, position = _attach(text, value, position, stack)
        if not stack:
            return value, position


def _attach(text: str, value: Any, position: int, stack: list[_Container]) -> tuple[Any, int]:
    """Put ``value`` into the innermost container and read on until another value is due.

    Returns the finished outermost value when the stack has become empty.
    """
    while stack:
        container = stack[-1]
        position = skip_space(text, position)
        mark = text[position : position + 1]
        if mark == ":" and container.opener == "{":
            if len(container.keys) != len(container.items):
                raise BadLiteral("unexpected ':'", position)
            container.keys.append(_key(value, position))
            return None, position + 1
        container.items.append(value)
        if container.opener == "{" and len(container.keys) != len(container.items):
            raise BadLiteral("expected ':' behind a key", position)
        if mark == ",":
            container.has_comma = True
            position = skip_space(text, position + 1)
            if not text.startswith(_CLOSERS[container.opener], position):
                return None, position
        elif mark != _CLOSERS[container.opener]:
            raise BadLiteral(f"expected ',' or {_CLOSERS[container.opener]!r}", position)
        value, position = stack.pop().close(position), position + 1
    return value, position


def _key(value: Any, position: int) -> Any:
    if isinstance(value, list | dict):
        raise BadLiteral("a dictionary key must be a string", position)
    return value


def _scalar(text: str, position: int) -> tuple[Any, int]:
    if _STRING_START.match(text, position):
        return _strings(text, position)
    if word := _WORD.match(text, position):
        if word[0] not in _CONSTANTS:
            at = len(text) if word.end() == len(text) else position
            raise BadLiteral(f"{word[0][:80]!r} is not a literal", at)
        return _CONSTANTS[word[0]], word.end()
    signs = _SIGNS.match(text, position)
    start = signs.end() if signs else position
    number = _NUMBER.match(text, start)
    if number is None:
        raise BadLiteral("expected a value", start)
    value = _parse_number(number, position)
    negative = text[position:start].count("-") % 2
    return (-value if negative else value), number.end()


def _parse_number(number: re.Match[str], position: int) -> int | float:
    try:
        if number[1] is None or ("." not in number[1] and number[2] is None):
            return int(number[0], 0)
        return float(number[0])
    except ValueError:
        raise BadLiteral(f"{number[0][:40]!r} is not a number", position) from None


def _strings(text: str, position: int) -> tuple[str, int]:
    """Read one string, or several that stand side by side and are one."""
    parts: list[str] = []
    end = position
    while _STRING_START.match(text, position):
        match = _STRING.match(text, position)
        if match is None:
            raise BadLiteral("a string is not closed", _string_fault(text, position))
        prefix, *bodies = match.groups()
        body = next(body for body in bodies if body is not None)
        parts.append(body if prefix in ("r", "R") else _unescape(body, position))
        end = match.end()
        position = skip_space(text, end)
    return "".join(parts), end


def _string_fault(text: str, position: int) -> int:
    """Return where an unclosed string ends: at a newline if it is an ordinary one."""
    position += text[position] not in "'\""
    if text.startswith(("'''", '"""'), position):
        return len(text)
    newline = text.find("\n", position)
    return len(text) if newline < 0 else newline


def _unescape(body: str, position: int) -> str:
    if "\\" not in body:
        return body

    def replace(match: re.Match[str]) -> str:
        escape = match[0][1:]
        if escape in _SIMPLE:
            return _SIMPLE[escape]
        if escape[0] in "01234567":
            return chr(int(escape, 8))
        try:
            if escape[0] in "xuU" and len(escape) > 1:
                return chr(int(escape[1:], 16))
            if escape[0] == "N" and len(escape) > 1:
                return unicodedata.lookup(escape[2:-1])
        except (ValueError, KeyError, OverflowError):
            raise BadLiteral(f"unknown escape {match[0]!r}", position) from None
        if escape in ("x", "u", "U", "N"):
            raise BadLiteral(f"unfinished escape {match[0]!r}", position)
        return match[0]

    return _ESCAPE.sub(replace, body)
