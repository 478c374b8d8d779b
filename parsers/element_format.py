"""The frame for formats that write calls as elements; one class per tag style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hermes_rl.parsers.elements import Elements, Grammar, equals_head
from hermes_rl.parsers.format import Format
from hermes_rl.parsers.json_value import decode, encode
from hermes_rl.parsers.scan import Scan
from hermes_rl.parsers.tool_schemas import ToolSchemas
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["ElementFormat", "function_grammar", "value_text"]


def function_grammar(wrapper: str, *, trims_newlines: bool = True) -> Grammar:
    """Return the grammar of ``<WRAPPER><function=N><parameter=K>V</parameter></function>``."""
    return Grammar(
        wrappers=((f"<{wrapper}>", f"</{wrapper}>"),),
        function_open="<function=",
        function_close="</function>",
        parameter_open="<parameter=",
        parameter_close="</parameter>",
        read_head=equals_head,
        trims_newlines=trims_newlines,
    )


def value_text(value: Any) -> str:
    """Write a value as Qwen3-Coder's template does: containers as JSON, scalars by ``str``."""
    return encode(value) if isinstance(value, dict | list) else str(value)


class ElementFormat(Format):
    """A format with one :class:`~hermes_rl.parsers.elements.Grammar`."""

    grammar: ClassVar[Grammar]
    is_inline: ClassVar[bool] = True
    """Whether the template writes values on the line of their tags."""

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        return Elements(
            text, self.grammar, ToolSchemas(tools), was_cut=finish_reason == "length"
        ).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls``, each in a wrapper of its own."""
        grammar = self.grammar
        opening, close = grammar.wrappers[0]
        blocks = [content] if content else []
        for call in calls:
            values = decode(call.arguments).items()
            parameters = [self.render_parameter(key, value) for key, value in values]
            function = self.render_function(call.name)
            lines = [opening, function, *parameters, grammar.function_close, close]
            blocks.append("\n".join(lines))
        return "\n".join(blocks)

    def render_function(self, name: str) -> str:
        """Write a function's opening tag."""
        return f"{self.grammar.function_open}{name}>"

    def render_parameter(self, key: str, value: Any) -> str:
        """Write a whole parameter."""
        text = value_text(value)
        is_inline = self.is_inline and not (
            self.grammar.trims_newlines and text.startswith(("\n", "\r\n")) | text.endswith("\n")
        )
        opening = f"{self.grammar.parameter_open}{key}>"
        return ("" if is_inline else "\n").join([opening, text, self.grammar.parameter_close])
