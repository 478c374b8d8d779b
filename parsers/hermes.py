r"""Hermes 2 and 3, and everything that copied them.

``<tool_call>\n{"name": N, "arguments": {...}}\n</tool_call>``, once per call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.format import Format
from hermes_rl.parsers.json_value import encode
from hermes_rl.parsers.marked_json import MarkedJSON
from hermes_rl.parsers.scan import Scan
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["HermesParser"]


class HermesParser(Format):
    """JSON calls between ``<tool_call>`` tags."""

    name: ClassVar[str] = "hermes"
    open_tag: ClassVar[str] = "<tool_call>"
    close_tag: ClassVar[str] = "</tool_call>"

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        was_cut = finish_reason == "length"
        return MarkedJSON(text, (self.open_tag,), self.close_tag, was_cut=was_cut).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as the Hermes template does."""
        blocks = [
            f'{self.open_tag}\n{{"name": {encode(call.name)}, "arguments": {call.arguments}}}\n'
            f"{self.close_tag}"
            for call in calls
        ]
        return "\n".join([content, *blocks] if content else blocks)
