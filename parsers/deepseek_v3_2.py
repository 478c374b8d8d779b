r"""DeepSeek V3.2: DSML elements, whose parameters say themselves whether they are strings.

``<D function_calls>\n<D invoke name="N">\n<D parameter name="K" string="true|false">V</D
parameter>\n</D invoke>\n</D function_calls>`` with ``D`` for the token ``\uff5cDSML\uff5c`` and
no space behind it. ``string="true"`` is text, anything else JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hermes_rl.parsers.elements import Elements, Grammar, Head, attribute_head
from hermes_rl.parsers.json_value import BadJSON, decode, encode
from hermes_rl.parsers.minimax_m2 import InvokeFormat
from hermes_rl.parsers.scan import Scan
from hermes_rl.parsers.tool_schemas import ToolSchemas
from hermes_rl.types import JSONObject

__all__ = ["DeepSeekV32Parser", "dsml_grammar"]

_DSML = "\uff5cDSML\uff5c"
_LONE_WRAPPERS = ("arguments", "input")


def _convert(text: str, head: Head, types: frozenset[str] | None) -> Any:
    if head.get("string") == "true":
        return text
    try:
        value = decode(text)
        encode(value)
    except BadJSON:
        return text
    return value


def dsml_grammar(*wrappers: str) -> Grammar:
    """Return the grammar with these wrapper names; the first is the one written."""
    return Grammar(
        wrappers=tuple((f"<{_DSML}{name}>", f"</{_DSML}{name}>") for name in wrappers),
        function_open=f"<{_DSML}invoke ",
        function_close=f"</{_DSML}invoke>",
        parameter_open=f"<{_DSML}parameter ",
        parameter_close=f"</{_DSML}parameter>",
        read_head=attribute_head,
        convert=_convert,
        trims_newlines=False,
    )


class DeepSeekV32Parser(InvokeFormat):
    """DSML elements in ``function_calls``."""

    name: ClassVar[str] = "deepseek_v3_2"
    grammar: ClassVar[Grammar] = dsml_grammar("function_calls")
    unquoted_markers: ClassVar[tuple[str, ...]] = (f"<{_DSML}function_calls>",)

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        schemas = ToolSchemas(tools)

        def unwrap(name: str, values: dict[str, Any]) -> dict[str, Any]:
            """Take the arguments out of a lone wrapper parameter that the schema lacks."""
            for key in _LONE_WRAPPERS if len(values) == 1 and schemas.declares(name) else ():
                inner = values.get(key)
                if isinstance(inner, dict) and not schemas.has_parameter(name, key):
                    return inner
            return values

        was_cut = finish_reason == "length"
        return Elements(text, self.grammar, schemas, was_cut=was_cut, finish=unwrap).run()

    def render_parameter(self, key: str, value: Any) -> str:
        """Write a whole parameter."""
        is_string = isinstance(value, str)
        text = value if is_string else encode(value)
        head = f'name="{key}" string="{str(is_string).lower()}"'
        return f"{self.grammar.parameter_open}{head}>{text}{self.grammar.parameter_close}"
