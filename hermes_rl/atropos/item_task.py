"""An environment's item as a task of the engine."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import orjson

from hermes_rl.sandbox import SandboxSpec
from hermes_rl.tasks import Deadlines
from hermes_rl.types import AgentResult, Message

__all__ = ["ItemTask", "TaskSource", "item_id"]


class TaskSource(Protocol):
    """The hooks of an environment that turn an item into a task."""

    @property
    def compute_reward(self) -> Callable[..., Any]:
        """``compute_reward(item, result, ctx)``; plain or a coroutine function."""
        ...

    @property
    def sync_reward(self) -> bool:
        """The reward code blocks although it may be a coroutine function."""
        ...

    def format_prompt(self, item: Any) -> str | list[Message]:
        """Return the user message, or the opening messages."""
        ...

    def sandbox_spec(self, item: Any) -> SandboxSpec:
        """Return the item's sandbox."""
        ...

    def deadlines(self, item: Any) -> Deadlines:
        """Return the item's limits."""
        ...


def item_id(item: Any) -> str:
    """Return a stable name of an item: its ``id`` or ``task_name`` if it has one, else a digest."""
    for key in ("id", "task_id", "task_name", "instance_id"):
        value = item.get(key) if isinstance(item, Mapping) else getattr(item, key, None)
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value):
            return str(value)
    data = orjson.dumps(item, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return f"item-{hashlib.sha256(data).hexdigest()[:12]}"


class ItemTask:
    """A :class:`~hermes_rl.tasks.Task` made from one item.

    Attributes:
        item: The item as ``get_next_item`` gave it.
    """

    def __init__(self, source: TaskSource, item: Any) -> None:
        self.item = item
        self.id = item_id(item)
        self.prompt = source.format_prompt(item)
        self.sandbox = source.sandbox_spec(item)
        self.deadlines = source.deadlines(item)
        self.sync_reward = source.sync_reward
        self.metadata: Mapping[str, Any] = {}
        self.reward = self._reward_code(source.compute_reward, item)

    @staticmethod
    def _reward_code(compute: Callable[..., Any], item: Any) -> Callable[..., Any]:
        """Return ``reward(result, ctx)``, plain or a coroutine function as ``compute`` is."""
        if inspect.iscoroutinefunction(compute):

            async def reward(result: AgentResult, ctx: Any) -> Any:
                return await compute(item, result, ctx)

            return reward

        def blocking_reward(result: AgentResult, ctx: Any) -> Any:
            return compute(item, result, ctx)

        return blocking_reward
