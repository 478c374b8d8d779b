"""LongCat: two dialects under ``<longcat_tool_call>``, told apart by what stands behind the tag.

LongCat-Flash-Chat writes JSON as Hermes does; LongCat-Flash-Thinking-2601 and LongCat-2.0 write
tagged keys and values as GLM does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from hermes_rl.parsers.hermes import HermesParser
from hermes_rl.parsers.key_values import KeyValues, KeyValueTags
from hermes_rl.parsers.marked_json import MarkedJSON
from hermes_rl.parsers.reasoning import THINK, ReasoningTags
from hermes_rl.parsers.scan import Scan, skip_space
from hermes_rl.types import JSONObject

__all__ = ["LONGCAT_TAGS", "LongCatParser"]

LONGCAT_TAGS = KeyValueTags(
    open="<longcat_tool_call>",
    close="</longcat_tool_call>",
    key_open="<longcat_arg_key>",
    key_close="</longcat_arg_key>",
    value_open="<longcat_arg_value>",
    value_close="</longcat_arg_value>",
)


class LongCatParser(HermesParser):
    """JSON or tagged pairs; renders JSON."""

    name: ClassVar[str] = "longcat"
    open_tag: ClassVar[str] = LONGCAT_TAGS.open
    close_tag: ClassVar[str] = LONGCAT_TAGS.close
    unquoted_markers: ClassVar[tuple[str, ...]] = (LONGCAT_TAGS.open,)
    reasoning_tags: ClassVar[tuple[ReasoningTags, ...]] = (
        ReasoningTags("<longcat_think>", "</longcat_think>"),
        THINK,
    )

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        return _LongCatScan(text, tools, finish_reason).run()


class _LongCatScan(MarkedJSON):
    def __init__(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> None:
        was_cut = finish_reason == "length"
        super().__init__(text, (LONGCAT_TAGS.open,), LONGCAT_TAGS.close, was_cut=was_cut)
        is_stopped = finish_reason == "stop"
        self._pairs = KeyValues(self.found, self.finder, LONGCAT_TAGS, tools, is_stopped=is_stopped)

    def read_body(self, start: int, after: int) -> int:
        """Read JSON if a bracket follows, else tagged pairs; return where to go on."""
        body = skip_space(self.found.text, after)
        if self.found.text[body : body + 1] in ("", "{", "["):
            return super().read_body(start, after)
        return self._pairs.read(start, after)
