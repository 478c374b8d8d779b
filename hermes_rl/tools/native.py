"""The tools that this library implements itself, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hermes_rl.tools.process import PROCESS
from hermes_rl.tools.terminal import TERMINAL
from hermes_rl.tools.todo import TODO
from hermes_rl.tools.tool import Tool

__all__ = ["NATIVE_TOOLS"]

NATIVE_TOOLS: Mapping[str, Tool] = MappingProxyType(
    {tool.name: tool for tool in (PROCESS, TERMINAL, TODO)}
)
"""Native tools, sorted by name."""
