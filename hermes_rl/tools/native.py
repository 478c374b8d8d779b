"""The tools that this library implements itself, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hermes_rl.tools.patch import PATCH
from hermes_rl.tools.process import PROCESS
from hermes_rl.tools.read_file import READ_FILE
from hermes_rl.tools.search_files import SEARCH_FILES
from hermes_rl.tools.terminal import TERMINAL
from hermes_rl.tools.todo import TODO
from hermes_rl.tools.tool import Tool
from hermes_rl.tools.write_file import WRITE_FILE

__all__ = ["NATIVE_TOOLS"]

NATIVE_TOOLS: Mapping[str, Tool] = MappingProxyType(
    {
        tool.name: tool
        for tool in (PATCH, PROCESS, READ_FILE, SEARCH_FILES, TERMINAL, TODO, WRITE_FILE)
    }
)
"""Native tools, sorted by name."""
