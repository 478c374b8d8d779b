"""DeepSeek V4: the DSML elements of V3.2 in ``tool_calls`` (seen: ``toolcalls``, ``tool``)."""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.parsers.deepseek_v3_2 import DeepSeekV32Parser, dsml_grammar
from hermes_rl.parsers.elements import Grammar

__all__ = ["DeepSeekV4Parser"]


class DeepSeekV4Parser(DeepSeekV32Parser):
    """DSML elements in ``tool_calls``."""

    name: ClassVar[str] = "deepseek_v4"
    grammar: ClassVar[Grammar] = dsml_grammar("tool_calls", "toolcalls", "tool", "function_calls")
    unquoted_markers: ClassVar[tuple[str, ...]] = tuple(opening for opening, _ in grammar.wrappers)
