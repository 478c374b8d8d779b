r"""Qwen3-Coder, Qwen3-Next-Coder, Qwen3.5 and 3.6 (also known as ``qwen3_xml``).

``<tool_call>\n<function=N>\n<parameter=K>\nV\n</parameter>\n</function>\n</tool_call>``. One
newline at each end of a value is markup, everything else in it is data. The template writes
containers as JSON and scalars with ``str()``; types come from the tool's schema, and a value
without one stays text.
"""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.parsers.element_format import ElementFormat, function_grammar
from hermes_rl.parsers.elements import Grammar

__all__ = ["Qwen3CoderParser"]


class Qwen3CoderParser(ElementFormat):
    """Function and parameter elements, values on their own lines."""

    name: ClassVar[str] = "qwen3_coder"
    grammar: ClassVar[Grammar] = function_grammar("tool_call")
    unquoted_markers: ClassVar[tuple[str, ...]] = ("<tool_call>", "<function=")
    is_inline: ClassVar[bool] = False
