r"""MiniMax-M2.

``<minimax:tool_call>\n<invoke name="N">\n<parameter name="K">V</parameter>\n</invoke>\n``
``</minimax:tool_call>``. Attribute quotes may be double, single or missing; values are verbatim;
types come from the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hermes_rl.parsers.element_format import ElementFormat, value_text
from hermes_rl.parsers.elements import Grammar, attribute_head
from hermes_rl.parsers.format import END_TOKENS
from hermes_rl.parsers.json_value import decode
from hermes_rl.types import ToolCall

__all__ = ["InvokeFormat", "MiniMaxM2Parser"]


class InvokeFormat(ElementFormat):
    """``<invoke name="N">`` elements, several in one wrapper."""

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` in one wrapper."""
        if not calls:
            return content
        opening, close = self.grammar.wrappers[0]
        lines = [content, opening] if content else [opening]
        for call in calls:
            values = decode(call.arguments).items()
            lines.append(self.render_function(call.name))
            lines += [self.render_parameter(key, value) for key, value in values]
            lines.append(self.grammar.function_close)
        return "\n".join([*lines, close])

    def render_function(self, name: str) -> str:
        """Write a function's opening tag."""
        return f'{self.grammar.function_open}name="{name}">'

    def render_parameter(self, key: str, value: Any) -> str:
        """Write a whole parameter."""
        grammar = self.grammar
        return f'{grammar.parameter_open}name="{key}">{value_text(value)}{grammar.parameter_close}'


class MiniMaxM2Parser(InvokeFormat):
    """Invoke elements with verbatim values, typed by the schema."""

    name: ClassVar[str] = "minimax_m2"
    grammar: ClassVar[Grammar] = Grammar(
        wrappers=(("<minimax:tool_call>", "</minimax:tool_call>"),),
        function_open="<invoke ",
        function_close="</invoke>",
        parameter_open="<parameter ",
        parameter_close="</parameter>",
        read_head=attribute_head,
        trims_newlines=False,
    )
    unquoted_markers: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>", "<invoke ")
    end_tokens: ClassVar[tuple[str, ...]] = (*END_TOKENS, "[e~[")
