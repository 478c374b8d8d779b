"""Calls written as elements: wrapper, function, parameters; shared by Qwen3-Coder and many others.

Values are not quoted in any way, so what counts as a tag depends on where it stands: a closing
parameter tag is one only in front of another tag of the call (or the end); a closing function tag
inside a value only in front of the wrapper's end or another function; an opening parameter tag
inside a value only at the start of a line and if the tool declares the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.parsers.json_value import BadJSON, encode
from hermes_rl.parsers.scan import Finder, Scan, is_cut_tag, is_name, skip_space
from hermes_rl.parsers.tool_schemas import ToolSchemas, convert

__all__ = ["Elements", "Grammar", "Head", "attribute_head", "convert_by_schema", "equals_head"]

_HEAD = re.compile(r"([^<>\n]*+)(>|\Z)?+")
_ATTRIBUTE = re.compile(r"""(?<![\w-])([\w-]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"']++))""")
_CUT = "the call is cut off"

Head = Mapping[str, str]
"""What an opening tag says; ``name`` is there unless the tag is broken."""


def equals_head(text: str) -> Head:
    """Read the rest of a tag like ``<function=N>``."""
    return {"name": text.strip()}


def attribute_head(text: str) -> Head:
    """Read the rest of a tag like ``<invoke name="N">``; quotes double, single or none."""
    return {
        match[1]: next(value for value in match.groups()[1:] if value is not None).strip()
        for match in _ATTRIBUTE.finditer(text)
    }


def convert_by_schema(text: str, head: Head, types: frozenset[str] | None) -> Any:
    """Return a value as its schema says; text if there is no schema."""
    return text if types is None else convert(text, types)


@dataclass(slots=True, frozen=True)
class Grammar:
    """The tags of one format.

    Attributes:
        wrappers: Opening and closing tag around functions; the first is the one written.
        function_open: Beginning of a function's opening tag.
        function_close: Its closing tag.
        parameter_open: Beginning of a parameter's opening tag.
        parameter_close: Its closing tag.
        read_head: Reads the rest of an opening tag, up to ``>``.
        convert: From a value's text, its tag and its types to the value.
        trims_newlines: Whether one newline at each end of a value is markup.
    """

    wrappers: tuple[tuple[str, str], ...]
    function_open: str
    function_close: str
    parameter_open: str
    parameter_close: str
    read_head: Callable[[str], Head]
    convert: Callable[[str, Head, frozenset[str] | None], Any] = convert_by_schema
    trims_newlines: bool = True


@dataclass(slots=True)
class _Function:
    """One function element as read so far."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)


class _Fault(Exception):
    """A function that cannot be read on; ``position`` is the text's length if it was cut off."""

    def __init__(self, reason: str, position: int, name: str | None) -> None:
        super().__init__(reason)
        self.position = position
        self.name = name


class Elements:
    """Scans one text for calls written as elements."""

    def __init__(
        self,
        text: str,
        grammar: Grammar,
        schemas: ToolSchemas,
        *,
        was_cut: bool = False,
        finish: Callable[[str, dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        """Prepare to scan ``text``.

        Args:
            text: The text.
            grammar: Its tags.
            schemas: Give the types of values.
            was_cut: Whether the text is known to end at a length limit: then an end tag at the
                end of an unclosed value may as well be data.
            finish: Turns a function's name and values into its arguments.
        """
        self._text = text
        self._grammar = grammar
        self._schemas = schemas
        self._finish = finish
        self._was_cut = was_cut
        self._finder = Finder(text)
        self._found = Scan(text)
        self._opens = tuple(opening for opening, _ in grammar.wrappers)
        self._closes = tuple(close for _, close in grammar.wrappers)

    def run(self) -> Scan:
        """Scan the whole text."""
        position = 0
        starts = (*self._opens, self._grammar.function_open)
        while True:
            start, tag = self._finder.first(starts, position)
            if not tag:
                return self._found
            after = start + len(tag)
            is_bare = tag == self._grammar.function_open
            position = self._bare(start, after) if is_bare else self._wrapped(start, after)

    def _wrapped(self, start: int, after: int) -> int:
        """Read the functions of a wrapper; return where to go on."""
        self._found.markers += 1
        text, grammar = self._text, self._grammar
        body = skip_space(text, after)
        if is_cut_tag(text, body, grammar.function_open):
            self._found.reject(start, len(text), code="truncated", reason=_CUT)
            return len(text)
        if not text.startswith(grammar.function_open, body):
            return after
        while text.startswith(grammar.function_open, body):
            start = self._function(start, body)
            body = skip_space(text, start)
        return self._skip_close(start, body)

    def _bare(self, start: int, after: int) -> int:
        """Read a function without a wrapper; return where to go on.

        Prose about the syntax looks the same, so it must be whole and name a known tool.
        """
        head, end = self._head(after)
        if head is None or not self._schemas.declares(head.get("name", "")):
            return end
        self._found.markers += 1
        try:
            function, end = self._read(start)
        except _Fault as fault:
            if fault.position == len(self._text):
                self._reject(start, fault)
            return fault.position
        self._add(start, end, function)
        return self._skip_close(end, skip_space(self._text, end))

    def _function(self, start: int, body: int) -> int:
        """Read the function at ``body`` and record it from ``start`` on; return where to go on."""
        try:
            function, end = self._read(body)
        except _Fault as fault:
            return self._reject(start, fault)
        self._add(start, end, function)
        return end

    def _read(self, start: int) -> tuple[_Function, int]:
        """Read the function element at ``start``; return it and one past its end."""
        text, grammar = self._text, self._grammar
        head, position = self._head(start + len(grammar.function_open))
        name = head.get("name", "") if head is not None else ""
        if head is None and position == len(text):
            raise _Fault(_CUT, position, None)
        if not is_name(name):
            raise _Fault("the function has no proper name", position, None)
        function = _Function(name)
        tags = (grammar.parameter_open, grammar.function_close, *self._closes)
        while True:
            position = skip_space(text, position)
            if text.startswith(grammar.function_close, position):
                return function, position + len(grammar.function_close)
            if text.startswith(self._closes, position):
                return function, position
            if text.startswith(grammar.parameter_open, position):
                position = self._parameter(function, position + len(grammar.parameter_open))
            elif is_cut_tag(text, position, *tags):
                raise _Fault(_CUT, len(text), name)
            else:
                reason = f"expected {grammar.parameter_open}...> or {grammar.function_close}"
                raise _Fault(reason, position, name)

    def _parameter(self, function: _Function, start: int) -> int:
        """Read a parameter, behind the beginning of its tag; return one past its end."""
        head, position = self._head(start)
        if head is None:
            reason = _CUT if position == len(self._text) else "a parameter's tag is broken"
            raise _Fault(reason, position, function.name)
        key = head.get("name", "")
        if not key:
            raise _Fault("a parameter has no name", position, function.name)
        end, after = self._value_end(function, position)
        value = self._text[position:end]
        if self._grammar.trims_newlines:
            value = _trim_newlines(value)
        types = self._schemas.types(function.name, key)
        function.values[key] = self._grammar.convert(value, head, types)
        return after

    def _value_end(self, function: _Function, start: int) -> tuple[int, int]:
        """Return where the value that begins at ``start`` ends, and where to read on."""
        grammar = self._grammar
        tags = (grammar.parameter_close, grammar.function_close, grammar.parameter_open)
        followers = (grammar.parameter_open, grammar.function_close, *self._closes)
        position = start
        while True:
            position, tag = self._finder.first(tags, position)
            if not tag:
                raise _Fault(_CUT, len(self._text), function.name)
            after = position + len(tag)
            if tag == grammar.parameter_close and self._is_followed(after, followers):
                return position, after
            if tag == grammar.function_close and self._closes_value(after):
                if self._finder.next(grammar.function_open, start) < position:
                    reason = f"expected {grammar.parameter_close} behind the value"
                    raise _Fault(reason, position, function.name)
                return position, position
            if tag == grammar.parameter_open and self._opens_parameter(function, position):
                return position, position
            position = after

    def _closes_value(self, after: int) -> bool:
        """Whether a function's end tag in front of ``after`` closes the value it stands in."""
        if self._was_cut and skip_space(self._text, after) == len(self._text):
            return False
        return self._is_followed(after, (*self._closes, self._grammar.function_open))

    def _opens_parameter(self, function: _Function, position: int) -> bool:
        """Whether a parameter tag inside a value opens the next parameter."""
        if self._text[position - 1] != "\n":
            return False
        head, _ = self._head(position + len(self._grammar.parameter_open))
        name = head.get("name", "") if head is not None else ""
        return self._schemas.has_parameter(function.name, name)

    def _is_followed(self, position: int, tags: tuple[str, ...]) -> bool:
        """Whether one of ``tags``, whole or cut off, or the end of the text comes next."""
        position = skip_space(self._text, position)
        return self._text.startswith(tags, position) or is_cut_tag(self._text, position, *tags)

    def _head(self, start: int) -> tuple[Head | None, int]:
        """Read the rest of an opening tag.

        Returns:
            What the tag says and one past its ``>``; None and where reading failed if it is
            broken (the text's length: it was cut off).
        """
        match = _HEAD.match(self._text, start)
        if match is None or match[2] is None:
            return None, match.end() if match else start
        if match[2] != ">":
            return None, len(self._text)
        return self._grammar.read_head(match[1]), match.end()

    def _add(self, start: int, end: int, function: _Function) -> None:
        values = function.values
        if self._finish is not None:
            values = self._finish(function.name, values)
        try:
            arguments = encode(values)
        except BadJSON as error:
            self._found.reject(start, end, code=error.code, reason=str(error), name=function.name)
            return
        self._found.add_call(start, end, name=function.name, arguments=arguments)

    def _reject(self, start: int, fault: _Fault) -> int:
        """Record a malformed function; return where to go on."""
        end, code = fault.position, "truncated"
        if end < len(self._text):
            code = "malformed"
            next_start, _ = self._finder.first(self._opens, end)
            tags = (self._grammar.function_close, *self._closes)
            close, tag = self._finder.first(tags, end)
            end = min(close + len(tag), next_start)
        self._found.reject(start, end, code=code, reason=str(fault), name=fault.name)
        return end

    def _skip_close(self, start: int, position: int) -> int:
        """Record the wrapper's end at ``position``, if it is there; return where to go on."""
        text = self._text
        close = next((tag for tag in self._closes if text.startswith(tag, position)), None)
        if close is not None:
            end = position + len(close)
        elif position < len(text) and is_cut_tag(text, position, *self._closes):
            end = len(text)
        else:
            return start
        self._found.add_markup(start, end)
        return end


def _trim_newlines(value: str) -> str:
    if value.startswith("\r\n"):
        return value[2:].removesuffix("\n").removesuffix("\r")
    return value.removeprefix("\n").removesuffix("\n")
