"""The context for reward code that is not async, and the thread it runs in."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from hermes_rl.context_call import DEFAULT_TIMEOUT_S, ContextCall
from hermes_rl.errors import RewardError
from hermes_rl.types import JSONObject

if TYPE_CHECKING:
    from hermes_rl.context import ToolContext

__all__ = ["SyncToolContext", "run_sync_reward"]

T = TypeVar("T")


class SyncToolContext:
    """The same methods for reward code that is not async: each blocks and returns its result.

    Usable in the thread that :func:`run_sync_reward` runs the reward in.
    """

    def __init__(self, context: ToolContext) -> None:
        self.sandbox = context.sandbox
        self.tools = context.tools
        self.limit_s = context.limit_s
        self.artifacts = context.artifacts
        self._context = context
        self._closed = False

    def terminal(
        self, command: str, timeout: float = DEFAULT_TIMEOUT_S, *, session: str | None = None
    ) -> JSONObject:
        """See :meth:`ToolContext.terminal`."""
        return self._wait(self._context.terminal(command, timeout, session=session))

    def read_file(self, path: str) -> JSONObject:
        """See :meth:`ToolContext.read_file`."""
        return self._wait(self._context.read_file(path))

    def write_file(self, path: str, content: str | bytes) -> JSONObject:
        """See :meth:`ToolContext.write_file`."""
        return self._wait(self._context.write_file(path, content))

    def search(self, query: str, path: str = ".") -> JSONObject:
        """See :meth:`ToolContext.search`."""
        return self._wait(self._context.search(query, path))

    def upload_file(self, local_path: str | Path, remote_path: str) -> JSONObject:
        """See :meth:`ToolContext.upload_file`."""
        return self._wait(self._context.upload_file(local_path, remote_path))

    def upload_dir(self, local_dir: str | Path, remote_dir: str) -> list[JSONObject]:
        """See :meth:`ToolContext.upload_dir`."""
        return self._wait(self._context.upload_dir(local_dir, remote_dir))

    def download_file(self, remote_path: str, local_path: str | Path) -> JSONObject:
        """See :meth:`ToolContext.download_file`."""
        return self._wait(self._context.download_file(remote_path, local_path))

    def download_dir(self, remote_dir: str, local_dir: str | Path) -> list[JSONObject]:
        """See :meth:`ToolContext.download_dir`."""
        return self._wait(self._context.download_dir(remote_dir, local_dir))

    def web_search(self, query: str) -> JSONObject:
        """See :meth:`ToolContext.web_search`."""
        return self._wait(self._context.web_search(query))

    def web_extract(self, urls: Sequence[str]) -> JSONObject:
        """See :meth:`ToolContext.web_extract`."""
        return self._wait(self._context.web_extract(urls))

    def browser_navigate(self, url: str) -> JSONObject:
        """See :meth:`ToolContext.browser_navigate`."""
        return self._wait(self._context.browser_navigate(url))

    def browser_snapshot(self) -> JSONObject:
        """See :meth:`ToolContext.browser_snapshot`."""
        return self._wait(self._context.browser_snapshot())

    def call_tool(self, name: str, arguments: JSONObject) -> str:
        """See :meth:`ToolContext.call_tool`."""
        return self._wait(self._context.call_tool(name, arguments))

    def cleanup(self) -> None:
        """See :meth:`ToolContext.cleanup`."""
        self._wait(self._context.cleanup())

    def close(self) -> None:
        """Refuse every further call: the rollout has gone on without this reward code."""
        self._closed = True

    def _wait(self, call: ContextCall[T]) -> T:
        if self._closed:
            self._context._forget(call)
            raise RewardError(f"{call.what} came too late: the deadline of the reward has passed.")

        async def awaited() -> T:
            return await call

        return anyio.from_thread.run(awaited)


async def run_sync_reward(
    reward: Callable[[SyncToolContext], Any],
    context: ToolContext,
    *,
    limiter: anyio.CapacityLimiter,
) -> Any:
    """Run reward code that blocks, in a thread, and return what it returns.

    A coroutine function works too: its coroutine runs to the end in a loop of its own in that
    thread, while the calls of its context block.

    Cancelling returns at once. The thread cannot be stopped: its next call of the context raises,
    and its place in ``limiter`` stays taken until it has really ended.

    Args:
        reward: Called with the blocking context.
        context: The rollout's context.
        limiter: Bounds how many threads run reward code.
    """
    blocking = SyncToolContext(context)
    place = _Place(limiter)

    def work() -> Any:
        place.taken = True
        try:
            value = reward(blocking)
            return asyncio.run(value) if inspect.iscoroutine(value) else value
        finally:
            anyio.from_thread.run_sync(place.give_back)

    await limiter.acquire_on_behalf_of(place)
    try:
        return await anyio.to_thread.run_sync(
            work, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
        )
    finally:
        blocking.close()
        if not place.taken:
            place.give_back()


class _Place:
    """A place in a limiter, given back once: by the thread, or by us if it never started."""

    def __init__(self, limiter: anyio.CapacityLimiter) -> None:
        self.taken = False
        self._limiter = limiter
        self._is_back = False

    def give_back(self) -> None:
        if not self._is_back:
            self._is_back = True
            self._limiter.release_on_behalf_of(self)
