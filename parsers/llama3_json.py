"""Llama 3.1 to 3.3 (and Llama 4 in JSON mode): bare JSON objects, no delimiters.

``[<|python_tag|>]{"name": N, "parameters": {...}}``, several separated by ``;`` or white space.
Since nothing marks a call, what counts as one depends on how the text begins: behind the tag or
at the start of the text every call-shaped object is a call; inside prose only one that names a
known tool is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from hermes_rl.parsers.format import Format
from hermes_rl.parsers.json_calls import add_object
from hermes_rl.parsers.json_value import BadJSON, Extent, decode, encode, extent, read_name
from hermes_rl.parsers.scan import Finder, Scan, skip_space
from hermes_rl.parsers.tool_schemas import ToolSchemas
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["Llama3JSONParser"]

_TAG = "<|python_tag|>"
_CALL_FRONT = re.compile(
    r'\{\s*+(?:"type"\s*+:\s*+"function"\s*+,\s*+)?+"name"\s*+:\s*+"[^"\\]*+"\s*+'
    r'(?:,\s*+(?:"(?:parameters|arguments)"|\Z)|\Z)'
)
_SEPARATOR = re.compile(r"\s*+;\s*+")


class Llama3JSONParser(Format):
    """JSON objects with ``name`` and ``parameters``."""

    name: ClassVar[str] = "llama3_json"

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        return _LlamaScan(text, ToolSchemas(tools)).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` behind the tag, separated by ``;``."""
        objects = [
            f'{{"name": {encode(call.name)}, "parameters": {call.arguments}}}' for call in calls
        ]
        return f"{content}{_TAG}{'; '.join(objects)}" if calls else content


class _LlamaScan:
    def __init__(self, text: str, schemas: ToolSchemas) -> None:
        self._text = text
        self._schemas = schemas
        self._finder = Finder(text)
        self._found = Scan(text)
        self._is_open = text.startswith("{", skip_space(text, 0))
        """Whether any call-shaped object counts: the text began with one, or a tag came by."""

    def run(self) -> Scan:
        """Scan the whole text."""
        position = 0
        while (start := self._finder.next("{", position)) < len(self._text):
            self._skip_tag(position, start)
            span = extent(self._text, start)
            if span.is_closed:
                self._object(start, span)
                position = self._skip_separator(span.end)
            else:
                position = self._open_object(start, span)
        self._unfinished_tag(position)
        return self._found

    def _skip_tag(self, position: int, start: int) -> None:
        """Record a tag directly in front of the object at ``start``."""
        tag = self._finder.next(_TAG, position)
        if tag < start and skip_space(self._text, tag + len(_TAG)) == start:
            self._found.markers += 1
            self._found.add_markup(tag, start)
            self._is_open = True

    def _unfinished_tag(self, position: int) -> None:
        """Record a tag that the text ends with."""
        tag, end = self._finder.next(_TAG, position), len(self._text)
        if tag == end:
            return
        self._found.markers += 1
        if skip_space(self._text, tag + len(_TAG)) == end:
            reason = "the text ends before the call"
            self._found.reject(tag, end, code="truncated", reason=reason)

    def _object(self, start: int, span: Extent) -> None:
        """Record the closed object at ``start`` if it is a call."""
        try:
            value = decode(self._text[start : span.end], depth=span.depth)
        except BadJSON as error:
            if (name := self._front_name(start)) is not None:
                reason = f"not valid JSON: {error}"
                self._found.reject(start, span.end, code="json", reason=reason, name=name)
            return
        if self._is_call(value):
            self._found.markers += not self._is_behind_markup(start)
            add_object(self._found, start, span.end, value)

    def _is_behind_markup(self, start: int) -> bool:
        pieces = self._found.pieces
        return bool(pieces) and pieces[-1].kind == "markup" and pieces[-1].end == start

    def _open_object(self, start: int, span: Extent) -> int:
        """Record an object that never closes, if it was a call; return where to go on."""
        if (name := self._front_name(start)) is None:
            return max(span.end, start + 1)
        is_cut = span.end == len(self._text)
        code = "truncated" if is_cut else "json"
        fault = "the call is cut off"
        if not is_cut:
            fault = f"not valid JSON: unexpected {self._text[span.end]!r}"
        end = self._finder.next("{", span.end)
        self._found.reject(start, end, code=code, reason=fault, name=name)
        return end

    def _is_call(self, value: Any) -> bool:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return False
        if "parameters" not in value and "arguments" not in value:
            return False
        return self._is_open or self._schemas.declares(value["name"])

    def _front_name(self, start: int) -> str | None:
        """Return the tool's name if the broken object at ``start`` was meant as a call."""
        if not _CALL_FRONT.match(self._text, start):
            return None
        name = read_name(self._text, start)
        is_meant = name is not None and (self._is_open or self._schemas.declares(name))
        return name if is_meant else None

    def _skip_separator(self, position: int) -> int:
        """Record a separator behind an object; return where to go on."""
        match = _SEPARATOR.match(self._text, position)
        if match is None or not self._found.pieces or self._found.pieces[-1].end != position:
            return position
        self._found.add_markup(position, match.end())
        return match.end()
