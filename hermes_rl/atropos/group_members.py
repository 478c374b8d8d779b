"""The rollouts of one group: side by side, each failing alone."""

from __future__ import annotations

import logging
from typing import Any, Protocol

import anyio

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.packing import packed
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.types import JSONObject

__all__ = ["GroupFailed", "GroupMembers"]

REPLACEMENTS_PER_GROUP = 4
"""Errored rollouts of one group that are run anew before the group is given up."""
_log = logging.getLogger("hermes_rl.atropos")


class Collector(Protocol):
    """The part of an environment that collects one rollout."""

    config: HermesAgentEnvConfig

    async def collect_trajectory(self, item: Any) -> tuple[JSONObject | None, list[Any]]:
        """Run one rollout."""
        ...

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter."""
        ...


class GroupFailed(HermesRLError):
    """A group did not get its full number of scored rollouts."""

    retryable = True


class GroupMembers:
    """Collects ``group_size`` items, running others in the place of those that fail."""

    def __init__(self, env: Collector, item: Any) -> None:
        self._env = env
        self._item = item
        self._items: list[JSONObject] = []
        self._backlog: list[Any] = []
        self._failures = 0
        replaces = env.config.group_failures == "retry"
        self._allowed = REPLACEMENTS_PER_GROUP if replaces else 0
        self._stopping: Exception | None = None

    async def collect(self) -> tuple[list[JSONObject], list[Any]]:
        """Return the items and the backlog.

        Raises:
            GroupFailed: Too many failed.
            HermesRLError: One that stops the whole run.
        """
        async with anyio.create_task_group() as members:
            for _ in range(self._env.config.group_size):
                members.start_soon(self._member, members)
        if self._stopping is not None:
            raise self._stopping
        size = self._env.config.group_size
        if len(self._items) != size:
            raise GroupFailed(f"{self._failures} rollouts of a group of {size} failed.")
        return self._items, self._backlog

    async def _member(self, members: anyio.abc.TaskGroup) -> None:
        while True:
            try:
                item, backlog = await self._env.collect_trajectory(self._item)
            except Exception as error:
                if getattr(error, "stops_run", False) or isinstance(error, ConfigError):
                    self._stopping = error
                    members.cancel_scope.cancel()
                    return
                _log.warning("A rollout failed: %s: %s", type(error).__name__, error)
                self._env.count("rollouts_raised")
                item, backlog = None, []
            self._backlog.extend(backlog)
            if item is not None:
                self._items.append(await packed(item))
                return
            self._failures += 1
            if self._failures > self._allowed:
                # The group cannot be completed any more: its other rollouts are of no use.
                members.cancel_scope.cancel()
                return
