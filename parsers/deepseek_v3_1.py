"""DeepSeek V3.1: the tokens of V3, but ``BEGIN name SEP {...} END``, no type, fence or newline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.deepseek_v3 import TOKENS
from hermes_rl.parsers.delimited_json import DelimitedJSON, Header
from hermes_rl.parsers.format import Format
from hermes_rl.parsers.scan import Scan, is_name
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["DeepSeekV31Parser"]


def _read_header(text: str, start: int, separator: int, after: int) -> Header:
    name = text[start:separator].strip()
    return Header(name if is_name(name) else None, after)


class DeepSeekV31Parser(Format):
    """Arguments directly behind the separator."""

    name: ClassVar[str] = "deepseek_v3_1"

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        was_cut = finish_reason == "length"
        return DelimitedJSON(text, TOKENS, _read_header, was_cut=was_cut).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as the template does."""
        blocks = [
            f"{TOKENS.begin}{call.name}{TOKENS.separator}{call.arguments}{TOKENS.end}"
            for call in calls
        ]
        begin, end = TOKENS.sections[0]
        return f"{content}{begin}{''.join(blocks)}{end}" if calls else content
