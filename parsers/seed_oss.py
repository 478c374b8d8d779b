"""Seed-OSS: the elements of Qwen3-Coder in ``<seed:tool_call>``, reasoning in ``<seed:think>``."""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.parsers.element_format import ElementFormat, function_grammar
from hermes_rl.parsers.elements import Grammar
from hermes_rl.parsers.format import END_TOKENS
from hermes_rl.parsers.reasoning import THINK, ReasoningTags

__all__ = ["SeedOSSParser"]


class SeedOSSParser(ElementFormat):
    """Function and parameter elements, values inline."""

    name: ClassVar[str] = "seed_oss"
    grammar: ClassVar[Grammar] = function_grammar("seed:tool_call")
    unquoted_markers: ClassVar[tuple[str, ...]] = ("<seed:tool_call>", "<function=")
    end_tokens: ClassVar[tuple[str, ...]] = (*END_TOKENS, "<seed:eos>")
    reasoning_tags: ClassVar[tuple[ReasoningTags, ...]] = (
        ReasoningTags("<seed:think>", "</seed:think>"),
        THINK,
    )
