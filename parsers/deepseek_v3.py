r"""DeepSeek V3-0324 and R1-0528.

A call is ``BEGIN function SEP name\n```json\n{...}\n``` END`` inside ``CALLS_BEGIN ... CALLS_END``.
The published template writes ``CALLS_END`` only after a second call, so it may be missing.
The bars are U+FF5C and the low blocks U+2581, written as escapes so that no editor "repairs" them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.delimited_json import DelimitedJSON, Delimiters, Header
from hermes_rl.parsers.format import Format
from hermes_rl.parsers.scan import Scan, is_name
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["TOKENS", "DeepSeekV3Parser"]

TOKENS = Delimiters(
    sections=(
        (
            "<\uff5ctool\u2581calls\u2581begin\uff5c>",
            "<\uff5ctool\u2581calls\u2581end\uff5c>",
        ),
    ),
    begin="<\uff5ctool\u2581call\u2581begin\uff5c>",
    separator="<\uff5ctool\u2581sep\uff5c>",
    end="<\uff5ctool\u2581call\u2581end\uff5c>",
)
_NAME_AND_FENCE = re.compile(r"[^\S\n]*+([^\n`{<]*+)\s*+(?:```(?:json)?)?+")


def _read_header(text: str, _start: int, _separator: int, after: int) -> Header:
    """The name stands behind the separator; in front of it only the type, ``function``."""
    match = _NAME_AND_FENCE.match(text, after)
    name = match[1].strip() if match else ""
    body = match.end() if match else after
    if body == len(text):
        reason = "the call is cut off"
        return Header(None, body, code="truncated", reason=reason)
    return Header(name if is_name(name) else None, body)


class DeepSeekV3Parser(Format):
    """Arguments in a fenced block behind the name."""

    name: ClassVar[str] = "deepseek_v3"

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        was_cut = finish_reason == "length"
        return DelimitedJSON(text, TOKENS, _read_header, fence="```", was_cut=was_cut).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as the template does."""
        blocks = [
            f"{TOKENS.begin}function{TOKENS.separator}{call.name}\n"
            f"```json\n{call.arguments}\n```{TOKENS.end}"
            for call in calls
        ]
        begin, end = TOKENS.sections[0]
        return f"{content}{begin}{chr(10).join(blocks)}{end}" if calls else content
