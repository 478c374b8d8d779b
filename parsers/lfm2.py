"""LFM2: ``<|tool_call_start|>[f(a='x'), g()]<|tool_call_end|>``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.format import Format
from hermes_rl.parsers.llama4_pythonic import PythonListScan
from hermes_rl.parsers.python_calls import render_call
from hermes_rl.parsers.scan import Scan
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["LFM2Parser"]

_OPEN = "<|tool_call_start|>"
_CLOSE = "<|tool_call_end|>"


class LFM2Parser(Format):
    """A Python list of calls between tags."""

    name: ClassVar[str] = "lfm2"

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        return PythonListScan(text, _OPEN, _CLOSE, is_bare=False).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as one list."""
        listed = ", ".join(render_call(call) for call in calls)
        return f"{content}{_OPEN}[{listed}]{_CLOSE}" if calls else content
