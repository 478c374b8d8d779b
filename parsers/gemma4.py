"""Gemma 4.

``<|tool_call>call:N{k:<|"|>text<|"|>,n:42,l:[...],o:{...}}<tool_call|>``: keys bare, strings
between ``<|"|>``, reasoning in ``<|channel>thought ... <channel|>``. Nothing is escaped, so a
quote mark ends a string only where the value may end: in front of ``,``, ``}`` or ``]``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hermes_rl.parsers.format import END_TOKENS, Format
from hermes_rl.parsers.json_value import BadJSON, decode, encode
from hermes_rl.parsers.reasoning import ReasoningTags
from hermes_rl.parsers.scan import Finder, Scan, is_cut_tag, skip_space
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["Gemma4Parser"]

_OPEN = "<|tool_call>"
_CLOSE = "<tool_call|>"
_QUOTE = '<|"|>'
_MAX_DEPTH = 512
_NAME = re.compile(r"call:\s*+([^\s{}<>\[\]:,\"']++)\s*+\{")
_UNFINISHED_NAME = re.compile(r"(?:call:[^\s{}<>\[\]:,\"']*+|c(?:a(?:l(?:l)?+)?+)?+)?+\s*+\Z")
_BARE_KEY = re.compile(r"[\w.$/-]++")
_KEY = re.compile(r"\s*+([^\s{}\[\],:<>]++)\s*+:")
_UNFINISHED = re.compile(r"\s*+[^\s{}\[\],:<>]*+\s*+\Z")
_BARE = re.compile(r"[^{}\[\],<>]++")


class Gemma4Parser(Format):
    """Calls in Gemma's own notation."""

    name: ClassVar[str] = "gemma4"
    end_tokens: ClassVar[tuple[str, ...]] = (*END_TOKENS, "<turn|>", "<end_of_turn>", "<eos>")
    reasoning_tags: ClassVar[tuple[ReasoningTags, ...]] = (
        ReasoningTags("<|channel>thought", "<channel|>"),
    )
    unquoted_markers: ClassVar[tuple[str, ...]] = (_OPEN,)

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        return _GemmaScan(text).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as the template does."""
        blocks = [
            f"{_OPEN}call:{call.name}{_notation(decode(call.arguments))}{_CLOSE}" for call in calls
        ]
        return "".join([content, *blocks])


def _notation(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_key_notation(key)}:{_notation(item)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_notation(item) for item in value) + "]"
    return f"{_QUOTE}{value}{_QUOTE}" if isinstance(value, str) else encode(value)


def _key_notation(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else f"{_QUOTE}{key}{_QUOTE}"


class _Fault(Exception):
    """A call that cannot be read on; ``position`` is the text's length if it was cut off."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


@dataclass(slots=True)
class _Container:
    """An object or list that is being read; ``key`` is the one whose value is due."""

    closer: str
    values: dict[str, Any] = field(default_factory=dict)
    items: list[Any] = field(default_factory=list)
    key: str = ""

    def add(self, value: Any) -> None:
        if self.closer == "}":
            self.values[self.key] = value
        else:
            self.items.append(value)

    def result(self) -> Any:
        return self.values if self.closer == "}" else self.items


class _GemmaScan:
    def __init__(self, text: str) -> None:
        self._text = text
        self._finder = Finder(text)
        self._found = Scan(text)
        self._string_end = (0, -1)  # where a string's end was last looked for, and found

    def run(self) -> Scan:
        """Scan the whole text."""
        position = 0
        while (start := self._finder.next(_OPEN, position)) < len(self._text):
            self._found.markers += 1
            position = self._call(start, start + len(_OPEN))
        return self._found

    def _call(self, start: int, after: int) -> int:
        """Read the call whose marker is ``start`` to ``after``; return where to go on."""
        text = self._text
        body = skip_space(text, after)
        name = _NAME.match(text, body)
        if name is None:
            if not _UNFINISHED_NAME.match(text, body):
                return after
            reason = "the call is cut off"
            self._found.reject(start, len(text), code="truncated", reason=reason)
            return len(text)
        try:
            values, end = self._object(name.end())
            arguments = encode(values)
        except _Fault as fault:
            return self._reject(start, name[1], fault)
        except BadJSON as error:
            return self._reject(start, name[1], _Fault(str(error), name.end()))
        close = skip_space(text, end)
        if text.startswith(_CLOSE, close):
            end = close + len(_CLOSE)
        elif close < len(text) and is_cut_tag(text, close, _CLOSE):
            end = len(text)
        self._found.add_call(start, end, name=name[1], arguments=arguments)
        return end

    def _reject(self, start: int, name: str, fault: _Fault) -> int:
        """Record a malformed call; return where to go on."""
        end, code = len(self._text), "truncated"
        if fault.position < end:
            code = "malformed"
            close = self._finder.next(_CLOSE, fault.position)
            end = min(close + len(_CLOSE), self._finder.next(_OPEN, fault.position), end)
        self._found.reject(start, end, code=code, reason=str(fault), name=name)
        return end

    def _object(self, position: int) -> tuple[Any, int]:
        """Read an object behind its opening brace; return it and one past its end."""
        stack = [_Container("}")]
        while True:
            position = skip_space(self._text, position)
            container = stack[-1]
            if not self._text.startswith(container.closer, position):
                if container.closer == "}":
                    container.key, position = self._key(position)
                position = skip_space(self._text, position)
                opener = self._text[position : position + 1]
                if opener in ("{", "["):
                    if len(stack) >= _MAX_DEPTH:
                        raise _Fault(f"nested more than {_MAX_DEPTH} levels deep", position)
                    stack.append(_Container("}" if opener == "{" else "]"))
                    position += 1
                    continue
                value, position = self._scalar(position)
                container.add(value)
            outermost, position = self._close(stack, position)
            if not stack:
                return outermost, position

    def _close(self, stack: list[_Container], position: int) -> tuple[Any, int]:
        """Leave every container that ends here.

        Returns:
            The outermost one's value when the stack has become empty, and where to read on.
        """
        text, value = self._text, None
        while stack:
            position = skip_space(text, position)
            container = stack[-1]
            if text.startswith(",", position):
                return None, position + 1
            if not text.startswith(container.closer, position):
                raise _Fault(f"expected ',' or {container.closer!r}", position)
            value, position = stack.pop().result(), position + 1
            if stack:
                stack[-1].add(value)
        return value, position

    def _key(self, position: int) -> tuple[str, int]:
        """Read a key and its colon."""
        text = self._text
        if text.startswith(_QUOTE, position):
            end = self._finder.next(_QUOTE, position + len(_QUOTE))
            after = skip_space(text, end + len(_QUOTE))
            if end < len(text) and text.startswith(":", after):
                return text[position + len(_QUOTE) : end], after + 1
            raise _Fault("expected ':' behind a key", min(after, len(text)))
        match = _KEY.match(text, position)
        if match is None:
            cut = _UNFINISHED.match(text, position) or is_cut_tag(text, position, _QUOTE)
            raise _Fault("expected a key and ':'", len(text) if cut else position)
        return match[1], match.end()

    def _scalar(self, position: int) -> tuple[Any, int]:
        text = self._text
        if text.startswith(_QUOTE, position):
            start = position + len(_QUOTE)
            end = self._end_of_string(start)
            return text[start:end], end + len(_QUOTE)
        match = _BARE.match(text, position)
        if match is None:
            cut = is_cut_tag(text, position, _QUOTE)
            raise _Fault("expected a value", len(text) if cut else position)
        if match.end() == len(text):
            raise _Fault("the call is cut off", len(text))
        try:
            return decode(match[0]), match.end()
        except BadJSON:
            return match[0].strip(), match.end()

    def _end_of_string(self, start: int) -> int:
        """Return where the string that begins at ``start`` ends."""
        asked, found = self._string_end
        if asked <= start <= found:
            return found
        text, end = self._text, start
        while (end := self._finder.next(_QUOTE, end)) < len(text):
            after = skip_space(text, end + len(_QUOTE))
            if after == len(text) or text[after] in ",}]":
                self._string_end = (start, end)
                return end
            end += len(_QUOTE)
        raise _Fault("the call is cut off", len(text))
