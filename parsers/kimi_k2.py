"""Kimi K2, K2-Thinking and K2.5.

``SECTION_BEGIN (BEGIN functions.N:IDX ARGUMENT_BEGIN {...} END)+ SECTION_END``. The header is the
call's id: it counts over the whole conversation and must come back unchanged in the history, else
the model starts to write broken headers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.delimited_json import DelimitedJSON, Delimiters, Header
from hermes_rl.parsers.format import Format
from hermes_rl.parsers.scan import Scan
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["KimiK2Parser"]

_TOKENS = Delimiters(
    sections=(
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        ("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),
    ),
    begin="<|tool_call_begin|>",
    separator="<|tool_call_argument_begin|>",
    end="<|tool_call_end|>",
)
_PREFIX = "functions."
_INDEX = re.compile(r"[0-9]++")


def _read_header(text: str, start: int, separator: int, after: int) -> Header:
    call_id = text[start:separator].strip()
    name, colon, index = call_id.removeprefix(_PREFIX).rpartition(":")
    if not colon or not name or name.split() != [name] or not _INDEX.fullmatch(index):
        reason = f"the header must be functions.NAME:INDEX, not {call_id[:80]!r}"
        return Header(None, after, code="id", reason=reason)
    return Header(name, after, call_id)


class KimiK2Parser(Format):
    """Calls that carry their own ids."""

    name: ClassVar[str] = "kimi_k2"

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        was_cut = finish_reason == "length"
        return DelimitedJSON(text, _TOKENS, _read_header, was_cut=was_cut).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` as the template does; ids that are not Kimi's are replaced."""
        blocks = []
        for index, call in enumerate(calls):
            header = call.id if _is_native(call) else f"{_PREFIX}{call.name}:{index}"
            blocks.append(
                f"{_TOKENS.begin}{header}{_TOKENS.separator}{call.arguments}{_TOKENS.end}"
            )
        begin, end = _TOKENS.sections[0]
        return f"{content}{begin}{''.join(blocks)}{end}" if calls else content


def _is_native(call: ToolCall) -> bool:
    name, _, index = call.id.removeprefix(_PREFIX).rpartition(":")
    return name == call.name and _INDEX.fullmatch(index) is not None
