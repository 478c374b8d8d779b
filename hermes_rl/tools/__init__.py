"""The tools an agent calls: terminal and files, natively async, one set per rollout."""

from __future__ import annotations

from hermes_rl.tools.dispatcher import ToolDispatcher
from hermes_rl.tools.distributions import DISTRIBUTIONS, sample_distribution
from hermes_rl.tools.native import NATIVE_TOOLS
from hermes_rl.tools.protocol import Dispatcher
from hermes_rl.tools.scope import ToolScope, ToolSettings
from hermes_rl.tools.tool import Tool, ToolOutcome
from hermes_rl.tools.toolsets import TOOLSETS, Availability, resolve_toolsets, toolset_names

__all__ = [
    "DISTRIBUTIONS",
    "NATIVE_TOOLS",
    "TOOLSETS",
    "Availability",
    "Dispatcher",
    "Tool",
    "ToolDispatcher",
    "ToolOutcome",
    "ToolScope",
    "ToolSettings",
    "resolve_toolsets",
    "sample_distribution",
    "toolset_names",
]
