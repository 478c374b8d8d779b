"""Rollouts in progress: one behind a handle, many behind a stream.

Both run in the engine's task group, never in the caller's task, and hold a cancel scope of their
own. So leaving a loop early, an exception in its body, or closing the engine from another task
ends exactly them, and the caller's task is never cancelled behind its back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Self

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from hermes_rl.errors import ConfigError, EngineClosed
from hermes_rl.plan import RolloutPlan
from hermes_rl.rollout import Rollout, RolloutResult

__all__ = ["Activity", "RolloutHandle", "RolloutStream"]

_Channel = tuple[MemoryObjectSendStream[RolloutResult], MemoryObjectReceiveStream[RolloutResult]]

STOP_S = 90.0
"""Longest wait for cancelled rollouts to be torn down; each of its steps has a smaller bound."""


class Activity(Protocol):
    """Something that runs in the engine's task group."""

    async def run(self) -> None:
        """Run to the end; never raises but for cancellation."""
        ...

    def close(self) -> None:
        """The engine is closing: end at once."""
        ...


class RolloutHandle:
    """One rollout in progress, from :meth:`RolloutEngine.start`."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._done = anyio.Event()
        self._result: RolloutResult | None = None
        self._error: Exception = EngineClosed("The engine was closed before this rollout ended.")
        self._is_closing = False

    @property
    def is_done(self) -> bool:
        """Whether the rollout has ended and everything of it is torn down."""
        return self._done.is_set()

    def cancel(self) -> None:
        """Tear the rollout down; its result has the status ``cancelled``. Never waits."""
        self._rollout.cancel()

    async def result(self) -> RolloutResult:
        """Wait for the result. Cancelling the wait does not cancel the rollout.

        Raises:
            EngineClosed: The engine was closed first.
            HermesRLError: One that stops the whole run: a wrong key, a wrong configuration.
        """
        await self._done.wait()
        if self._result is None:
            raise self._error
        return self._result

    async def stopped(self) -> None:
        """Cancel the rollout and wait, shielded, until it is torn down."""
        self.cancel()
        with anyio.move_on_after(STOP_S, shield=True):
            await self._done.wait()

    async def run(self) -> None:
        """Run the rollout; the engine's part."""
        try:
            result = await self._rollout.run()
            if result.status != "cancelled" or not self._is_closing:
                self._result = result
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def close(self) -> None:
        """End the rollout because the engine closes; the engine's part."""
        self._is_closing = True
        self._rollout.cancel()


class RolloutStream:
    """Results of many rollouts as they finish, from :meth:`RolloutEngine.run`.

    An async context manager and iterator::

        async with engine.run(tasks) as results:
            async for result in results:
                ...

    Leaving the context by any way ends what still runs. At most ``2 * workers`` results exist at
    once, running or waiting to be taken: a slow reader slows the workers down.
    """

    def __init__(
        self,
        plan: Callable[[], Awaitable[Sequence[RolloutPlan]]],
        *,
        attempts: int,
        skip: Container[tuple[str, int]],
        max_workers: int,
        spawn: Callable[[RolloutStream], None],
        rollout: Callable[[RolloutPlan, int], Rollout],
    ) -> None:
        self._plan = plan
        self._attempts = attempts
        self._skip = skip
        self._workers = max_workers
        self._spawn = spawn
        self._rollout = rollout
        self._work: Iterator[tuple[RolloutPlan, int]] = iter(())
        self._scope = anyio.CancelScope()
        self._slots = anyio.Semaphore(2 * max_workers)
        self._finished: _Channel | None = None
        self._ended = anyio.Event()
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        """Resolve the tasks and start the workers.

        Raises:
            TaskError: A task is malformed, or an id occurs twice.
            ConfigError: ``terminal_lifetime`` is below what tasks need.
            EngineClosed: The engine is closed.
        """
        plans = await self._plan()
        self._work = _work(plans, self._attempts, self._skip)
        self._workers = min(self._workers, max(1, len(plans) * self._attempts))
        # Without a bound of its own: the slots are the bound, and a finished result is never held
        # back in a worker, where stopping would lose it.
        self._finished = anyio.create_memory_object_stream(float("inf"))
        try:
            self._spawn(self)
        except EngineClosed:
            self._close_channel()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End what still runs and wait, shielded, until it is torn down."""
        self._scope.cancel()
        with anyio.move_on_after(STOP_S, shield=True):
            await self._ended.wait()
        self._close_channel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RolloutResult:
        """Return the next result.

        Raises:
            EngineClosed: The engine was closed while rollouts were still to come.
            HermesRLError: One that stops the whole run, after every finished result was taken.
        """
        if self._finished is None:
            raise ConfigError("Enter the stream first: async with engine.run(...) as results.")
        with contextlib.suppress(anyio.EndOfStream):
            result = await self._finished[1].receive()
            self._slots.release()
            return result
        raise self._error or StopAsyncIteration

    def stop(self) -> None:
        """Take no more work and tear down what runs; finished results can still be read."""
        self._scope.cancel()

    def close(self) -> None:
        """End because the engine closes; the engine's part."""
        self._fail(EngineClosed("The engine was closed while rollouts were running."))

    async def run(self) -> None:
        """Run the workers; the engine's part."""
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    for _ in range(self._workers):
                        group.start_soon(self._run_worker)
        finally:
            if self._finished is not None:
                self._finished[0].close()
            self._ended.set()

    async def _run_worker(self) -> None:
        while True:
            await self._slots.acquire()
            plan, attempt = next(self._work, (None, 0))
            if plan is None:
                self._slots.release()
                return
            try:
                result = await self._rollout(plan, attempt).run()
            except Exception as error:
                self._fail(error)
                return
            self._put(result)

    def _put(self, result: RolloutResult) -> None:
        if self._finished is not None:
            self._finished[0].send_nowait(result)

    def _close_channel(self) -> None:
        if self._finished is not None:
            for end in self._finished:
                end.close()

    def _fail(self, error: Exception) -> None:
        """Stop all workers; the reader gets ``error`` after the finished results."""
        self._error = self._error or error
        self._scope.cancel()


def _work(
    plans: Sequence[RolloutPlan], attempts: int, skip: Container[tuple[str, int]]
) -> Iterator[tuple[RolloutPlan, int]]:
    """Yield every task once before any task twice."""
    for attempt in range(attempts):
        for plan in plans:
            if (plan.description.id, attempt) not in skip:
                yield plan, attempt
