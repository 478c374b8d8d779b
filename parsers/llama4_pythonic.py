"""Llama 4 (and Llama 3.2) pythonic calls: ``[f(a="x", b=1), g()]``, bare or between tags.

The tags are ``<|python_start|>`` and ``<|python_end|>``. Without them the list must begin the
text: brackets in prose are prose.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.format import END_TOKENS, Format
from hermes_rl.parsers.python_calls import PythonCalls, begins_call, render_call
from hermes_rl.parsers.scan import Finder, Scan, is_cut_tag, skip_space
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["Llama4PythonicParser", "PythonListScan"]

_OPEN = "<|python_start|>"
_CLOSE = "<|python_end|>"


class Llama4PythonicParser(Format):
    """A Python list of calls."""

    name: ClassVar[str] = "llama4_pythonic"
    end_tokens: ClassVar[tuple[str, ...]] = (*END_TOKENS, "<|eot|>", "<|eom|>")

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        return PythonListScan(text, _OPEN, _CLOSE, is_bare=True).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as one list, between tags if there is content in front."""
        if not calls:
            return content
        listed = f"[{', '.join(render_call(call) for call in calls)}]"
        return f"{content}{_OPEN}{listed}{_CLOSE}" if content else listed


class PythonListScan:
    """Scans a text for lists of calls behind a tag, and at its beginning if ``is_bare``."""

    def __init__(self, text: str, opening: str, close: str, *, is_bare: bool) -> None:
        self._text = text
        self._opening = opening
        self._close = close
        self._is_bare = is_bare
        self._finder = Finder(text)
        self._found = Scan(text)

    def run(self) -> Scan:
        """Scan the whole text."""
        position = skip_space(self._text, 0)
        if self._is_bare and self._begins_list(position):
            self._found.markers += 1
            position = self._list(position, position)
        while (start := self._finder.next(self._opening, position)) < len(self._text):
            self._found.markers += 1
            position = self._tagged(start, start + len(self._opening))
        return self._found

    def _tagged(self, start: int, after: int) -> int:
        """Read the list behind a tag; return where to go on."""
        body = skip_space(self._text, after)
        if body == len(self._text):
            reason = "the text ends before the call"
            self._found.reject(start, body, code="truncated", reason=reason)
            return body
        return self._list(start, body) if self._begins_list(body) else after

    def _begins_list(self, position: int) -> bool:
        if not self._text.startswith("[", position):
            return False
        inner = skip_space(self._text, position + 1)
        return self._text.startswith("]", inner) or begins_call(self._text, inner)

    def _list(self, start: int, body: int) -> int:
        """Read the list at ``body``; return where to go on."""
        text = self._text
        end = PythonCalls(self._found, self._finder, ("]",)).read(start, body + 1)
        if not text.startswith("]", end):
            return end
        after = skip_space(text, end + 1)
        if text.startswith(self._close, after):
            after += len(self._close)
        elif after < len(text) and is_cut_tag(text, after, self._close):
            after = len(text)
        else:
            after = end + 1
        self._found.add_markup(end, after)
        return after
