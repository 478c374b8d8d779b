"""A task whose every attribute can be set, for tests of what runs tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.context import ToolContext
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.tasks import Deadlines, Solution
from hermes_rl.types import AgentResult, Message

__all__ = ["FakeTask"]


async def _one(result: AgentResult, ctx: ToolContext) -> float:
    return 1.0


@dataclass(slots=True, kw_only=True)
class FakeTask:
    """A :class:`~hermes_rl.tasks.Task`; ``reward`` is called as ``reward(result, ctx)``."""

    id: str = "fake-task"
    prompt: str | Sequence[Message] = "Do it."
    reward: Callable[[AgentResult, Any], Any] = _one
    sandbox: SandboxSpec = field(default_factory=SandboxSpec)
    deadlines: Deadlines = field(default_factory=Deadlines)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    solution: Solution | None = None
    agent_user: str | None = None
    sync_reward: bool = False
    compact: Callable[[list[Message]], list[Message]] | None = None
