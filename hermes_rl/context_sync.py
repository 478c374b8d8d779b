"""The context for reward code that is not async, and the thread it runs in."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio

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

    def __init__(self, context: ToolContext, desk: _Desk) -> None:
        self.sandbox = context.sandbox
        self.tools = context.tools
        self.limit_s = context.limit_s
        self.artifacts = context.artifacts
        self._context = context
        self._desk = desk

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

    def _wait(self, call: ContextCall[T]) -> T:
        return self._desk.wait(call, self._context)


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
    and its place in ``limiter`` stays taken until it has really ended. The program's exit does not
    wait for it.

    Args:
        reward: Called with the blocking context.
        context: The rollout's context.
        limiter: Bounds how many threads run reward code.
    """
    desk = _Desk()
    place = object()
    blocking = SyncToolContext(context, desk)

    def work() -> None:
        try:
            value = reward(blocking)
            outcome = _Outcome(asyncio.run(value) if inspect.iscoroutine(value) else value)
        except BaseException as error:
            outcome = _Outcome(error=error)
        desk.end(outcome, partial(limiter.release_on_behalf_of, place))

    await limiter.acquire_on_behalf_of(place)
    variables = contextvars.copy_context()
    # No thread of anyio's pool: the interpreter waits for those before it exits, and reward code
    # that never ends would keep it for ever.
    thread = threading.Thread(target=variables.run, args=(work,), name="sync reward", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # The system has no thread left.
        limiter.release_on_behalf_of(place)
        raise
    return await desk.serve()


@dataclass(slots=True, frozen=True)
class _Outcome:
    """What reward code returned or raised."""

    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True, frozen=True)
class _Errand:
    """A call that the thread waits for."""

    call: ContextCall[Any]
    done: Future[Any]


class _Desk:
    """Where the thread of a reward hands over its calls, to be awaited by the rollout's own task.

    The thread never waits for the event loop without being told when nobody is there any more.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        # The thread waits for each of its calls, so one place for a call and one for the end.
        self._post, self._mail = anyio.create_memory_object_stream[_Errand | _Outcome](2)
        self._closed = False
        self._waiting: _Errand | None = None

    def wait(self, call: ContextCall[T], context: ToolContext) -> T:
        """Have ``call`` awaited and return its result; in the thread."""
        errand = _Errand(call, Future())
        try:
            self._loop.call_soon_threadsafe(self._hand_in, errand)
            return cast(T, errand.done.result())
        except (CancelledError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not self._loop.is_closed():
                raise
            context._forget(call)
            raise RewardError(
                f"{call.what} came too late: the deadline of the reward has passed."
            ) from None

    def end(self, outcome: _Outcome, give_back: Callable[[], None]) -> None:
        """Hand in the outcome and give back the place; the thread's last act."""

        def hand_in() -> None:
            give_back()
            if not self._closed:
                self._post.send_nowait(outcome)

        # A loop that has ended counts no places.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(hand_in)

    async def serve(self) -> Any:
        """Await the thread's calls until it ends; return or raise what its code did."""
        try:
            while True:
                mail = await self._mail.receive()
                if isinstance(mail, _Outcome):
                    break
                await _run(mail)
        finally:
            self._close()
        if mail.error is not None:
            raise mail.error
        return mail.value

    def _hand_in(self, errand: _Errand) -> None:
        if self._closed:
            errand.done.cancel()
        else:
            self._waiting = errand
            self._post.send_nowait(errand)

    def _close(self) -> None:
        self._closed = True
        self._post.close()
        self._mail.close()
        if self._waiting is not None:
            self._waiting.done.cancel()


async def _run(errand: _Errand) -> None:
    """Await one call; its errors are the thread's."""
    try:
        errand.done.set_result(await errand.call)
    except Exception as error:
        errand.done.set_exception(error)
