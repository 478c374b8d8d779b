"""Tool-call parsers, one file per format, found by name through entry points."""

from __future__ import annotations

from importlib.metadata import entry_points

from hermes_rl.errors import UnknownName
from hermes_rl.types import ToolCallParser

__all__ = ["get_parser", "list_parsers"]


def list_parsers() -> list[str]:
    """Names of all installed parsers, sorted."""
    return sorted({point.name for point in entry_points(group="hermes_rl.parsers")})


def get_parser(name: str) -> ToolCallParser:
    """Return the parser registered as ``name``.

    Raises:
        UnknownName: No such parser; lists the names and the nearest.
    """
    points = {point.name: point for point in entry_points(group="hermes_rl.parsers")}
    if name not in points:
        raise UnknownName.of("tool-call parser", name, points)
    parser: ToolCallParser = points[name].load()()
    return parser
