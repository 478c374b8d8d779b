r"""OLMo 3: ``<function_calls>f(a='x')\ng()</function_calls>``, one Python call per line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.format import Format
from hermes_rl.parsers.python_calls import PythonCalls, begins_call, render_call
from hermes_rl.parsers.scan import Finder, Scan, is_cut_tag, skip_space
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["OLMo3Parser"]

_OPEN = "<function_calls>"
_CLOSE = "</function_calls>"


class OLMo3Parser(Format):
    """Python calls between tags."""

    name: ClassVar[str] = "olmo3"

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        found, finder, position = Scan(text), Finder(text), 0
        while (start := finder.next(_OPEN, position)) < len(text):
            found.markers += 1
            position = _read_block(found, finder, start, start + len(_OPEN))
        return found

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls``, one per line."""
        lines = "\n".join(render_call(call) for call in calls)
        return f"{content}{_OPEN}{lines}{_CLOSE}" if calls else content


def _read_block(found: Scan, finder: Finder, start: int, after: int) -> int:
    """Read the calls of one block; return where to go on."""
    text = found.text
    body = skip_space(text, after)
    if body == len(text):
        reason = "the text ends before the call"
        found.reject(start, body, code="truncated", reason=reason)
        return body
    if not begins_call(text, body):
        return after
    end = PythonCalls(found, finder, (_CLOSE, _OPEN)).read(start, body)
    if text.startswith(_CLOSE, end):
        found.add_markup(end, end + len(_CLOSE))
        return end + len(_CLOSE)
    if end < len(text) and is_cut_tag(text, end, _CLOSE):
        found.add_markup(end, len(text))
        return len(text)
    return end
