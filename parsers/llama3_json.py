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
        tag = self._finder.next(_TAG, 0)
        brace = self._finder.next("{", 0)
        self._is_tagged = tag < brace
        self._is_bare = skip_space(text, 0) == brace
        self._tag_start = tag

    def run(self) -> Scan:
        """Scan the whole text."""
        position = 0
        if self._is_tagged:
            position = self._skip_tag()
        while (start := self._finder.next("{", position)) < len(self._text):
            span = extent(self._text, start)
            if span.is_closed:
                self._object(start, span)
                position = self._skip_separator(span.end)
            else:
                position = self._open_object(start, span)
        return self._found

    def _skip_tag(self) -> int:
        after = self._tag_start + len(_TAG)
        body = skip_space(self._text, after)
        self._found.markers += 1
        if body == len(self._text):
            reason = "the text ends before the call"
            self._found.reject(self._tag_start, body, code="truncated", reason=reason)
        elif self._text[body] == "{":
            self._found.add_markup(self._tag_start, body)
        return body

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
            self._found.markers += not self._is_tagged
            add_object(self._found, start, span.end, value)

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
        return self._is_tagged or self._is_bare or self._schemas.declares(value["name"])

    def _front_name(self, start: int) -> str | None:
        """Return the tool's name if the broken object at ``start`` was meant as a call."""
        if not _CALL_FRONT.match(self._text, start):
            return None
        name = read_name(self._text, start)
        if name is None or not (self._is_tagged or self._is_bare or self._schemas.declares(name)):
            return None
        return name

    def _skip_separator(self, position: int) -> int:
        """Record a separator behind an object; return where to go on."""
        match = _SEPARATOR.match(self._text, position)
        if match is None or not self._found.pieces or self._found.pieces[-1].end != position:
            return position
        self._found.add_markup(position, match.end())
        return match.end()
