"""Calls written as ``BEGIN header SEPARATOR json END``; shared by DeepSeek and Kimi."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hermes_rl.parsers.json_calls import add_arguments, balanced, invalid_end, reject_open
from hermes_rl.parsers.scan import Finder, Scan, is_cut_tag, skip_space

__all__ = ["DelimitedJSON", "Delimiters", "Header"]


@dataclass(slots=True, frozen=True)
class Delimiters:
    """The special tokens of a format.

    Attributes:
        sections: Begin and end token of the section around all calls; variants allowed.
        begin: Begin of a call.
        separator: Between header and arguments.
        end: End of a call.
    """

    sections: tuple[tuple[str, str], ...]
    begin: str
    separator: str
    end: str


@dataclass(slots=True, frozen=True)
class Header:
    """A call's header as read.

    Attributes:
        name: Tool name, None if the header has none.
        body: Where the arguments begin.
        id: Call id, None if the format has none.
        code: Why there is no name, see :class:`~hermes_rl.types.InvalidCall`.
        reason: The same in a sentence.
    """

    name: str | None
    body: int
    id: str | None = None
    code: str = "name"
    reason: str = "the call has no tool name"


ReadHeader = Callable[[str, int, int, int], Header]
"""From text, start of the header, start and end of the separator."""


class DelimitedJSON:
    """Scans one text.

    Args:
        text: The text.
        tokens: The special tokens.
        read_header: Reads a call's header.
        fence: What may stand behind the arguments in front of the end token.
        was_cut: Whether the text is known to end at a length limit.
    """

    def __init__(
        self,
        text: str,
        tokens: Delimiters,
        read_header: ReadHeader,
        *,
        fence: str = "",
        was_cut: bool = False,
    ) -> None:
        self._text = text
        self._tokens = tokens
        self._read_header = read_header
        self._fence = fence
        self._finder = Finder(text)
        self._found = Scan(text)
        self._section_opens = tuple(opening for opening, _ in tokens.sections)
        self._section_ends = tuple(end for _, end in tokens.sections)
        ends = (tokens.end, *self._section_ends)
        self._is_cut = was_cut or not text.rstrip().endswith(ends)

    def run(self) -> Scan:
        """Scan the whole text."""
        position = 0
        begin = self._tokens.begin
        while True:
            start, token = self._finder.first((*self._section_opens, begin), position)
            if not token:
                return self._found
            after = start + len(token)
            position = self._call(start, after) if token == begin else self._section(start, after)

    def _section(self, start: int, after: int) -> int:
        """Record a section's begin token if a call follows; return where to go on."""
        body = skip_space(self._text, after)
        if self._text.startswith(self._tokens.begin, body):
            self._found.add_markup(start, body)
            return body
        self._found.markers += 1
        if is_cut_tag(self._text, body, self._tokens.begin):
            self._cut(start)
            return len(self._text)
        return after

    def _call(self, start: int, after: int) -> int:
        """Read the call that begins at ``start``; return where to go on."""
        self._found.markers += 1
        separator = self._finder.next(self._tokens.separator, after)
        next_call = self._finder.next(self._tokens.begin, after)
        if separator >= next_call:
            is_word = next_call == len(self._text) and len(self._text[after:].split()) < 2
            if is_word:
                self._cut(start)
            return len(self._text) if is_word else after
        body = separator + len(self._tokens.separator)
        header = self._read_header(self._text, after, separator, body)
        if header.name is None:
            end = self._invalid_end(body, body)
            self._found.reject(start, end, code=header.code, reason=header.reason)
            return end
        return self._body(start, header, skip_space(self._text, header.body))

    def _body(self, start: int, header: Header, body: int) -> int:
        """Read the arguments at ``body``; return where to go on."""
        text, name = self._text, str(header.name)
        if body == len(text):
            self._cut(start, name)
            return body
        if text[body] in "{[":
            span, is_balanced = balanced(text, body)
            if not is_balanced:
                end = self._invalid_end(body, span.end)
                return reject_open(
                    self._found, start, end, span=span, is_cut=self._is_cut, name=name
                )
            end = span.end
        else:
            end = self._finder.next(self._tokens.end, body)
            if end > self._finder.next(self._tokens.begin, body) or end == len(text):
                end = self._invalid_end(body, body)
                reason = "the arguments must be a JSON object"
                code = "truncated" if end == len(text) and self._is_cut else "arguments"
                self._found.reject(start, end, code=code, reason=reason, name=name)
                return end
        raw = text[body:end]
        if self._fence and raw.rstrip().endswith(self._fence) and text[body] not in "{[":
            raw = raw.rstrip().removesuffix(self._fence)
        add_arguments(self._found, start, end, name=name, raw=raw, call_id=header.id)
        return self._skip_ends(end)

    def _skip_ends(self, start: int) -> int:
        """Record end tokens behind a call; return where to go on."""
        end = start
        for tokens in ((self._fence,), (self._tokens.end,), self._section_ends):
            position = skip_space(self._text, end)
            token = next((t for t in tokens if t and self._text.startswith(t, position)), None)
            if token is not None:
                end = position + len(token)
            elif position < len(self._text) and is_cut_tag(self._text, position, *tokens):
                end = len(self._text)
        self._found.add_markup(start, end)
        return end

    def _invalid_end(self, body: int, failed: int) -> int:
        end = invalid_end(
            self._finder, (self._tokens.begin,), (self._tokens.end,), body=body, failed=failed
        )
        position = skip_space(self._text, end)
        for section_end in self._section_ends:
            if self._text.startswith(section_end, position):
                return position + len(section_end)
        return end

    def _cut(self, start: int, name: str | None = None) -> None:
        reason = "the call is cut off"
        end = len(self._text)
        self._found.reject(start, end, code="truncated", reason=reason, name=name)
