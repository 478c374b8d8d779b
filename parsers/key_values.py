r"""Calls written as a name and tagged key/value pairs; shared by GLM and LongCat's second dialect.

``<tool_call>N<arg_key>K</arg_key><arg_value>V</arg_value>...</tool_call>``, with or without
newlines between the tags; a backslash and an n, written out, also occur there. Keys and values
are not quoted in any way, so a closing value tag is one only where a tag of the call follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.parsers.json_calls import invalid_end
from hermes_rl.parsers.json_value import BadJSON, decode, encode
from hermes_rl.parsers.scan import Finder, Scan, is_cut_tag, is_name
from hermes_rl.parsers.tool_schemas import ToolSchemas, convert
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["GLM_TAGS", "KeyValueTags", "KeyValues", "render_key_values"]

_GAP = re.compile(r"(?:\s++|\\n)*+")
_KEY = re.compile(r"[^<]*+")


@dataclass(slots=True, frozen=True)
class KeyValueTags:
    """The six tags of a dialect."""

    open: str
    close: str
    key_open: str
    key_close: str
    value_open: str
    value_close: str


GLM_TAGS = KeyValueTags(
    open="<tool_call>",
    close="</tool_call>",
    key_open="<arg_key>",
    key_close="</arg_key>",
    value_open="<arg_value>",
    value_close="</arg_value>",
)


class _Fault(Exception):
    """A call that cannot be read on; ``position`` is the text's length if it was cut off."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


class KeyValues:
    """Reads calls of one text.

    Args:
        found: Where calls are recorded.
        finder: Of the same text.
        tags: The dialect.
        tools: Schemas that give the types.
        is_stopped: Whether the text is known to have ended at a stop string: then a call that
            ends behind a value is complete.
    """

    def __init__(
        self,
        found: Scan,
        finder: Finder,
        tags: KeyValueTags,
        tools: Sequence[JSONObject] | None,
        *,
        is_stopped: bool,
    ) -> None:
        self._found = found
        self._finder = finder
        self._tags = tags
        self._text = found.text
        self._schemas = ToolSchemas(tools)
        self._is_stopped = is_stopped

    def run(self) -> Scan:
        """Scan the whole text."""
        position = 0
        while (start := self._finder.next(self._tags.open, position)) < len(self._text):
            self._found.markers += 1
            position = self.read(start, start + len(self._tags.open))
        return self._found

    def read(self, start: int, after: int) -> int:
        """Read the call whose start tag is ``start`` to ``after``; return where to go on."""
        tags = self._tags
        name_end, tag = self._finder.first((tags.key_open, tags.close), after)
        if self._finder.next(tags.open, after) < name_end:
            return after
        name = self._trim(after, name_end)
        if not tag:
            return self._unfinished_name(start, after, name)
        if not is_name(name):
            return after
        try:
            values, end = self._pairs(name, name_end)
        except _Fault as fault:
            return self._reject(start, after, name, fault)
        self._add(start, end, name, values)
        return end

    def _unfinished_name(self, start: int, after: int, name: str) -> int:
        """Record a text that ends in or in front of the name; other words are prose."""
        end = len(self._text)
        if name and (self._text[after].isspace() or not is_name(name.partition("<")[0])):
            return after
        self._found.reject(start, end, code="truncated", reason="the call is cut off")
        return end

    def _pairs(self, name: str, position: int) -> tuple[dict[str, Any], int]:
        """Read key/value pairs up to the end tag; return them and one past it."""
        text, tags = self._text, self._tags
        values: dict[str, Any] = {}
        while True:
            position = self._skip_gap(position)
            if text.startswith(tags.close, position):
                return values, position + len(tags.close)
            if text.startswith(tags.key_open, position):
                key, position = self._key(position + len(tags.key_open))
                end = self._value_end(position)
                values[key] = self._value(name, key, text[position:end])
                position = end + len(tags.value_close)
            elif position == len(text) and values and self._is_stopped:
                return values, position
            elif is_cut_tag(text, position, tags.close, tags.key_open):
                raise _Fault("the call is cut off", len(text))
            else:
                raise _Fault(f"expected {tags.key_open} or {tags.close}", position)

    def _key(self, start: int) -> tuple[str, int]:
        """Return the key at ``start`` and where its value begins."""
        text, tags = self._text, self._tags
        match = _KEY.match(text, start)
        end = match.end() if match else start
        if is_cut_tag(text, end, tags.key_close):
            raise _Fault("the call is cut off", len(text))
        if not text.startswith(tags.key_close, end):
            raise _Fault(f"expected {tags.key_close} behind the key", end)
        key = text[start:end].strip()
        position = self._skip_gap(end + len(tags.key_close))
        if is_cut_tag(text, position, tags.value_open):
            raise _Fault("the call is cut off", len(text))
        if not text.startswith(tags.value_open, position):
            raise _Fault(f"the argument {key[:80]!r} has no value", position)
        return key, position + len(tags.value_open)

    def _value_end(self, start: int) -> int:
        """Return where the value that begins at ``start`` ends."""
        tags = self._tags
        end = start
        while (end := self._finder.next(tags.value_close, end)) < len(self._text):
            after = self._skip_gap(end + len(tags.value_close))
            if self._text.startswith((tags.key_open, tags.close), after):
                return end
            if is_cut_tag(self._text, after, tags.key_open, tags.close):
                return end
            end += len(tags.value_close)
        raise _Fault("the call is cut off", len(self._text))

    def _value(self, name: str, key: str, text: str) -> Any:
        types = self._schemas.types(name, key)
        if types is not None:
            return convert(text, types)
        try:
            value = decode(text)
            encode(value)
        except BadJSON:
            return text
        return text if isinstance(value, str) else value

    def _add(self, start: int, end: int, name: str, values: dict[str, Any]) -> None:
        try:
            arguments = encode(values)
        except BadJSON as error:
            self._found.reject(start, end, code=error.code, reason=str(error), name=name)
            return
        self._found.add_call(start, end, name=name, arguments=arguments)

    def _reject(self, start: int, after: int, name: str, fault: _Fault) -> int:
        end, code = fault.position, "truncated"
        if fault.position < len(self._text):
            code, body = "malformed", max(after, fault.position)
            tags = self._tags
            end = invalid_end(
                self._finder, (tags.open,), (tags.close,), body=body, failed=fault.position
            )
        self._found.reject(start, end, code=code, reason=str(fault), name=name)
        return end

    def _skip_gap(self, position: int) -> int:
        match = _GAP.match(self._text, position)
        return match.end() if match else position

    def _trim(self, start: int, end: int) -> str:
        """Return the name without the white space and written-out newlines around it."""
        text, start = self._text, self._skip_gap(start)
        while end > start:
            if text[end - 1].isspace():
                end -= 1
            elif text.endswith("\\n", start, end):
                end -= 2
            else:
                break
        return text[start:end]


def render_key_values(call: ToolCall, tags: KeyValueTags, *, newline: str) -> str:
    """Write one call: strings as they are, everything else as JSON."""
    parts = [f"{tags.open}{call.name}"]
    for key, value in decode(call.arguments).items():
        text = value if isinstance(value, str) else encode(value)
        parts.append(f"{tags.key_open}{key}{tags.key_close}")
        parts.append(f"{tags.value_open}{text}{tags.value_close}")
    return newline.join([*parts, tags.close])
