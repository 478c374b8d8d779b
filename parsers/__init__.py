"""Tool-call parsers, one file per format, found by name through entry points.

``get_parser(name).parse(text, tools)`` returns a :class:`~hermes_rl.types.ParseResult`, which
unpacks as ``content, tool_calls``. Plug-ins register a class in the entry-point group
``hermes_rl.parsers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from hermes_rl.errors import UnknownName
from hermes_rl.plugins import make_plugin
from hermes_rl.types import ToolCallParser

__all__ = ["get_parser", "list_parsers"]

_MEMBERS = ("name", "parse")


def list_parsers() -> list[str]:
    """Names of all installed parsers, sorted."""
    return sorted(_points())


@cache
def get_parser(name: str) -> ToolCallParser:
    """Return the parser registered as ``name``; always the same object, it keeps no state.

    Raises:
        UnknownName: No such parser; lists the names and the nearest.
        ConfigError: It cannot be imported or made, or another package claims its name.
    """
    points = _points()
    if name not in points:
        raise UnknownName.of("tool-call parser", name, points)
    parser: ToolCallParser = make_plugin(points[name], "Tool-call parser", members=_MEMBERS)
    return parser


@cache
def _points() -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="hermes_rl.parsers")}
