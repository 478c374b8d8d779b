"""MiMo: the tags of Qwen3-Coder, but values are inline and verbatim, newlines included."""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.parsers.element_format import ElementFormat, function_grammar
from hermes_rl.parsers.elements import Grammar

__all__ = ["MiMoParser"]


class MiMoParser(ElementFormat):
    """Function and parameter elements with verbatim values."""

    name: ClassVar[str] = "mimo"
    grammar: ClassVar[Grammar] = function_grammar("tool_call", trims_newlines=False)
    unquoted_markers: ClassVar[tuple[str, ...]] = ("<tool_call>", "<function=")
