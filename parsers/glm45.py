r"""GLM-4.5 and 4.6.

``<tool_call>N\n<arg_key>K</arg_key>\n<arg_value>V</arg_value>\n...</tool_call>``: strings raw,
everything else JSON. Values are written inline, so white space around them is data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.format import Format
from hermes_rl.parsers.key_values import GLM_TAGS, KeyValues, render_key_values
from hermes_rl.parsers.scan import Finder, Scan
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["GLM45Parser"]


class GLM45Parser(Format):
    """Tagged keys and values, one tag per line; reads the layout of GLM-4.7 too."""

    name: ClassVar[str] = "glm45"
    unquoted_markers: ClassVar[tuple[str, ...]] = (GLM_TAGS.open,)
    newline: ClassVar[str] = "\n"

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        is_stopped = finish_reason == "stop"
        return KeyValues(Scan(text), Finder(text), GLM_TAGS, tools, is_stopped=is_stopped).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as the template does."""
        blocks = [render_key_values(call, GLM_TAGS, newline=self.newline) for call in calls]
        return self.newline.join([content, *blocks] if content else blocks)
