"""What the rollouts of one group share: tools, number, progress. Never an attribute of the env.

``collect_trajectory(item)`` has no parameter for it, so it travels in a context variable that
every task of the group inherits. Two groups that run at once cannot see each other's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from hermes_rl.types import JSONObject

__all__ = ["GroupState", "current_group", "group_scope"]


@dataclass(slots=True)
class GroupState:
    """One group.

    Attributes:
        number: Unique in this process; seeds derive from it.
        tool_names: The tools of every rollout in the group; None = as configured.
        tools: Their schemas, once a rollout of the group has ended.
        left_out: Sampled tokens that forks left out.
    """

    number: int
    tool_names: tuple[str, ...] | None = None
    tools: tuple[JSONObject, ...] = ()
    left_out: int = 0
    _attempts: Iterator[int] = field(default_factory=itertools.count)

    def next_attempt(self) -> int:
        """Return the 0-based number of the next rollout of this group."""
        return next(self._attempts)


_current: ContextVar[GroupState | None] = ContextVar("hermes_rl_group", default=None)


def current_group() -> GroupState | None:
    """Return the group that the calling task works for."""
    return _current.get()


@contextmanager
def group_scope(state: GroupState) -> Iterator[GroupState]:
    """Make ``state`` the current group of this task and the tasks it starts."""
    token = _current.set(state)
    try:
        yield state
    finally:
        _current.reset(token)
