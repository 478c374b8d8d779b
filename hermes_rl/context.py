"""What reward code may do in the agent's sandbox."""

from __future__ import annotations

from hermes_rl.sandbox import Sandbox
from hermes_rl.tools.protocol import Dispatcher

__all__ = ["ToolContext"]


class ToolContext:
    """Awaitable access to the sandbox as the agent left it: files, processes, tabs.

    Attributes:
        sandbox: The sandbox itself, for what the methods here do not cover.
        tools: The rollout's dispatcher.
    """

    def __init__(self, sandbox: Sandbox, tools: Dispatcher) -> None:
        self.sandbox = sandbox
        self.tools = tools
