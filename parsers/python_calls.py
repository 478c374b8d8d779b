"""Calls written as Python: ``name(key=literal, ...)``; shared by Llama 4, OLMo 3 and LFM2."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.parsers.json_value import BadJSON, decode, encode
from hermes_rl.parsers.python_literal import BadLiteral, read_literal
from hermes_rl.parsers.scan import Finder, Scan, skip_space
from hermes_rl.types import ToolCall

__all__ = ["PythonCalls", "begins_call", "render_call"]

_CALLEE = re.compile(r"([^\W\d]\w*+(?:\.[^\W\d]\w*+)*+)\s*+\(")
_KEYWORD = re.compile(r"([^\W\d]\w*+)\s*+=(?!=)")
_UNFINISHED_CALLEE = re.compile(r"[\w.]*+\s*+\Z")
_UNFINISHED_KEYWORD = re.compile(r"\w*+\s*+\Z")


def begins_call(text: str, position: int) -> bool:
    """Whether ``name(`` stands at ``position``."""
    return _CALLEE.match(text, position) is not None


def render_call(call: ToolCall) -> str:
    """Write one call."""
    pairs = (f"{key}={value!r}" for key, value in decode(call.arguments).items())
    return f"{call.name}({', '.join(pairs)})"


@dataclass(slots=True, frozen=True)
class PythonCalls:
    """Reads a run of calls.

    Attributes:
        found: Where calls are recorded.
        finder: Of the same text.
        closers: What ends the run: ``]``, or the wrapper's end tag.
    """

    found: Scan
    finder: Finder
    closers: Sequence[str]

    def read(self, start: int, position: int) -> int:
        """Read calls from ``position`` on, separated by commas or newlines.

        The first piece begins at ``start``. Calls in front of a malformed one count; what is
        behind it cannot be told from its arguments and is part of it.

        Returns:
            One past the last call and the separator behind it.
        """
        text = self.found.text
        while True:
            position = skip_space(text, position)
            if position == len(text) or text.startswith(tuple(self.closers), position):
                self.found.add_markup(start, position)
                return position
            try:
                name, arguments, end = _read_call(text, position)
            except BadLiteral as fault:
                return self._reject(start, position, fault)
            self._add(start, end, name, arguments)
            start = end
            position = skip_space(text, end)
            if text.startswith(",", position):
                position += 1

    def _add(self, start: int, end: int, name: str, values: dict[str, Any]) -> None:
        try:
            arguments = encode(values)
        except BadJSON as error:
            self.found.reject(start, end, code=error.code, reason=str(error), name=name)
            return
        self.found.add_call(start, end, name=name, arguments=arguments)

    def _reject(self, start: int, position: int, fault: BadLiteral) -> int:
        text = self.found.text
        callee = _CALLEE.match(text, position)
        name = callee[1] if callee else None
        if fault.position >= len(text):
            reason = "the call is cut off"
            self.found.reject(start, len(text), code="truncated", reason=reason, name=name)
            return len(text)
        end, _ = self.finder.first(self.closers, fault.position)
        reason = f"{fault} at character {fault.position - start} of the call"
        self.found.reject(start, end, code="malformed", reason=reason, name=name)
        return end


def _read_call(text: str, position: int) -> tuple[str, dict[str, Any], int]:
    """Read ``name(key=value, ...)``; return name, arguments and one past the end."""
    callee = _CALLEE.match(text, position)
    if callee is None:
        cut = _UNFINISHED_CALLEE.match(text, position)
        raise BadLiteral("expected name(", len(text) if cut else position)
    values: dict[str, Any] = {}
    position = skip_space(text, callee.end())
    while not text.startswith(")", position):
        keyword = _KEYWORD.match(text, position)
        if keyword is None:
            cut = _UNFINISHED_KEYWORD.match(text, position)
            reason = "arguments must be written as name=value"
            raise BadLiteral(reason, len(text) if cut else position)
        if keyword[1] in values:
            raise BadLiteral(f"the argument {keyword[1][:80]!r} is given twice", position)
        values[keyword[1]], position = read_literal(text, keyword.end())
        position = skip_space(text, position)
        if text.startswith(",", position):
            position = skip_space(text, position + 1)
        elif not text.startswith(")", position):
            raise BadLiteral("expected ',' or ')'", position)
    return callee[1], values, position + 1
