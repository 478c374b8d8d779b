"""hermes-agent's tools for the rollouts of one engine: worker processes, or threads.

A rollout belongs to the worker of its first call, where its browser lives, until it ends. Workers
are started when they are needed: an engine whose agents call none of these tools starts none.
A worker that dies takes its rollouts' calls with it (they are errored, and may be retried); the
next rollout gets a new one.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import anyio
import orjson
from anyio.abc import TaskGroup

from hermes_rl.errors import EngineClosed, ToolFault
from hermes_rl.legacy.carry import carried_in, carried_out
from hermes_rl.legacy.catalog import NOTHING, Catalog
from hermes_rl.legacy.in_process import ThreadLink
from hermes_rl.legacy.in_worker.hermes import Outcome
from hermes_rl.legacy.link import Link
from hermes_rl.legacy.process_link import ProcessLink
from hermes_rl.legacy.safety import OFFERED, READ_ONLY, argument_problem
from hermes_rl.legacy.settings import LegacySettings
from hermes_rl.tools.scope import ToolScope
from hermes_rl.tools.tool import Tool, ToolOutcome
from hermes_rl.types import JSONObject, ToolResult

__all__ = ["LegacyRollout", "LegacyTools"]

CALL_TIMEOUT_S = 300.0
"""Of one call, from the moment it has a thread: as long as hermes-agent's own longest."""
START_TIMEOUT_S = 120.0
"""Importing hermes-agent for the first time compiles 800 modules."""
MAX_STARTS = 4
"""Of one worker; what dies more often does not die by chance."""
TELL_WAIT_S = 10.0
"""A longer wait for a thread is told when the engine closes."""

_log = logging.getLogger(__name__)


class LegacyTools:
    """The workers of one engine. Enter it with ``async with``; leaving ends them within 5 s.

    Args:
        settings: How many, and which interpreter.
        catalog: What is usable, from :func:`~hermes_rl.legacy.catalog.catalog_of`.
    """

    def __init__(self, settings: LegacySettings, catalog: Catalog = NOTHING) -> None:
        count = max(1, settings.workers)
        self.settings = settings
        self.catalog = catalog
        self.is_present = settings.is_present
        self.longest_wait_s = 0.0
        self._links: list[Link | None] = [None] * count
        self._rollouts = [0] * count
        self._starts = [0] * count
        self._starting = [anyio.Lock() for _ in range(count)]
        self._group: TaskGroup | None = None
        self._is_closing = False

    async def __aenter__(self) -> Self:
        """Start nothing yet."""
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Interrupt what runs, free what rollouts hold, end the workers."""
        self._is_closing = True
        if self.longest_wait_s > TELL_WAIT_S:
            _log.warning(
                "A call of a hermes-agent tool waited %.0f s for a thread; tool_pool_size is %d.",
                self.longest_wait_s,
                self.settings.threads,
            )
        assert self._group is not None
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as stopping:
                for link in self._links:
                    if link is not None:
                        stopping.start_soon(link.stop)
        await self._group.__aexit__(None, None, None)

    @property
    def links(self) -> Sequence[Link]:
        """The workers that have been started."""
        return [link for link in self._links if link is not None]

    def rollout(self) -> LegacyRollout:
        """Return the tools of one more rollout; starts nothing."""
        return LegacyRollout(self)

    def assign(self) -> int:
        """Give a rollout to the worker that has the fewest, and return which that is."""
        worker = min(range(len(self._rollouts)), key=self._rollouts.__getitem__)
        self._rollouts[worker] += 1
        return worker

    def give_back(self, worker: int) -> None:
        """A rollout of a worker has ended."""
        self._rollouts[worker] -= 1

    async def link(self, worker: int) -> Link:
        """Return a worker that works; starts it if need be.

        Raises:
            ConfigError: hermes-agent cannot be imported.
            ToolFault: It died, or does not come up.
            EngineClosed: The engine is closing.
        """
        async with self._starting[worker]:
            link = self._links[worker]
            if link is None or (isinstance(link.failure, ToolFault) and self._may_start(worker)):
                link = await self._start(worker)
        with anyio.move_on_after(START_TIMEOUT_S) as scope:
            await link.ready()
        if scope.cancelled_caught:
            raise ToolFault(f"hermes-agent was not imported within {START_TIMEOUT_S:g} s.")
        return link

    def _may_start(self, worker: int) -> bool:
        return self._starts[worker] < MAX_STARTS

    async def _start(self, worker: int) -> Link:
        if self._group is None or self._is_closing:
            raise EngineClosed("The engine is closing; no tool of hermes-agent is started.")
        self._starts[worker] += 1
        # Not to be cut off between the start of a process and somebody who ends it.
        with anyio.CancelScope(shield=True):
            if self.settings.workers:
                link: Link = await ProcessLink.start(self.settings, worker)
            else:
                link = await ThreadLink.start(self.settings)
            self._links[worker] = link
            self._group.start_soon(link.run)
        return link


class LegacyRollout:
    """The tools of one rollout.

    Attributes:
        id: By which hermes-agent knows the rollout; never used twice.
        tools: To be given to a dispatcher as extra tools: what is usable, and the rest of the safe
            list for reward code, which hears from the tool itself what is missing.
    """

    def __init__(self, pool: LegacyTools) -> None:
        self.id = f"rollout-{uuid.uuid4().hex}"
        self._pool = pool
        self._worker: int | None = None
        self._link: Link | None = None
        self._assigning = anyio.Lock()
        names = OFFERED | pool.catalog.schemas.keys() if pool.is_present else ()
        self.tools = [self._tool(name, pool.catalog.schemas.get(name)) for name in sorted(names)]

    def _tool(self, name: str, schema: JSONObject | None) -> Tool:
        function: JSONObject = schema["function"] if schema else {}
        anything: JSONObject = {"type": "object", "additionalProperties": True}

        async def handler(scope: ToolScope, arguments: JSONObject) -> ToolOutcome:
            return await self._run(name, scope, arguments)

        return Tool(
            name=name,
            description=function.get("description", ""),
            parameters=function.get("parameters", anything),
            handler=handler,
            read_only=name in READ_ONLY,
            deadline_s=float("inf"),
        )

    async def _run(self, tool: str, scope: ToolScope, arguments: JSONObject) -> ToolOutcome:
        problem = argument_problem(tool, arguments)
        if problem is not None:
            return {"error": problem}
        link = await self._assigned()
        home = link.home or ""
        async with carried_in(scope, home, tool, arguments) as given:
            request = {"tool": tool, "arguments": given, "task": self.id, "call": scope.call_id}
            asked_at = time.monotonic()
            outcome = await link.call(
                request, timeout_s=CALL_TIMEOUT_S, on_start=lambda: self._waited(asked_at)
            )
        if outcome is None:
            return {"error": f"{tool} did not finish within {CALL_TIMEOUT_S:g} s."}
        return _result(outcome, await carried_out(scope, home, outcome.content))

    def _waited(self, since: float) -> None:
        self._pool.longest_wait_s = max(self._pool.longest_wait_s, time.monotonic() - since)

    async def _assigned(self) -> Link:
        async with self._assigning:
            if self._worker is None:
                self._worker = self._pool.assign()
            if self._link is None:
                self._link = await self._pool.link(self._worker)
            return self._link

    async def aclose(self) -> None:
        """Free what the rollout holds in its worker, browser and all. Idempotent, bounded."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        try:
            if self._link is not None:
                await self._link.end(self.id)
        finally:
            self._pool.give_back(worker)


def _result(outcome: Outcome, content: str) -> ToolResult:
    parts: Any = orjson.loads(content) if outcome.is_parts else content
    return ToolResult(parts, outcome.error)
