"""Granite 3: ``<|tool_call|>`` (or ``<tool_call>``) and a JSON array of calls, no end marker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.format import END_TOKENS, Format
from hermes_rl.parsers.json_value import encode
from hermes_rl.parsers.marked_json import MarkedJSON
from hermes_rl.parsers.scan import Scan
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["GraniteParser"]

_OPENS = ("<|tool_call|>", "<tool_call>")


class GraniteParser(Format):
    """One JSON array behind a marker."""

    name: ClassVar[str] = "granite"
    end_tokens: ClassVar[tuple[str, ...]] = (*END_TOKENS, "<|end_of_text|>")

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        return MarkedJSON(text, _OPENS, None).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as one array."""
        objects = [
            f'{{"name": {encode(call.name)}, "arguments": {call.arguments}}}' for call in calls
        ]
        return f"{content}{_OPENS[0]}[{', '.join(objects)}]" if calls else content
