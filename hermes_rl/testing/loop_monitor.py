"""A monitor that fails when a callback keeps the event loop busy for too long.

CPU time of the loop's thread is measured, not wall time, so a busy machine makes no false alarm::

    def test_something():
        with loop_monitor():
            asyncio.run(main())

or, in a test module, ``from hermes_rl.testing.loop_monitor import busy_callbacks`` and the
fixture's name as an argument of a test.

CPU time is not free of noise either. Beside fifteen busy processes on two virtual cores a loop that
always takes 0.3 ms was charged with 2.5, 5.4 and 6.8 ms in 20,000 rounds, and in two of twenty runs
of several seconds of CPU one callback with 16 to 18 ms, without a page fault or a collection, in
no run the same. What really blocks, blocks every time. So work that is done once is tried again
(:func:`run_without_long_callbacks`), and where every kind of work is done many times a single spike
may be allowed (``spikes``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

from hermes_rl.garbage import no_full_collections

__all__ = [
    "MAX_CALLBACK_S",
    "BusyCallback",
    "busy_callbacks",
    "loop_monitor",
    "run_without_long_callbacks",
    "watched_callbacks",
]

T = TypeVar("T")

MAX_CALLBACK_S = 0.010
"""CPU seconds that one callback may use."""


@dataclass(slots=True, frozen=True)
class BusyCallback:
    """A callback that used too much: what ran, and its CPU seconds."""

    what: str
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.cpu_s * 1000:.1f} ms of CPU in {self.what}"


@contextmanager
def watched_callbacks(limit_s: float = MAX_CALLBACK_S) -> Iterator[list[BusyCallback]]:
    """Yield the list of callbacks, of any event loop, that use more than ``limit_s`` CPU seconds.

    No full garbage collection starts meanwhile, as in our commands: it would cost whichever
    callback it falls on tens of milliseconds for the heap that a test process has anyhow.
    Collections of young objects count.
    """
    busy: list[BusyCallback] = []
    handle_class: Any = asyncio.Handle  # Its parts used here are private, and typed as absent.
    original = handle_class._run

    def measured(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        original(handle)
        cpu_s = time.thread_time() - before
        if cpu_s > limit_s:
            busy.append(BusyCallback(_describe(handle), cpu_s))

    with no_full_collections():
        handle_class._run = measured
        try:
            yield busy
        finally:
            handle_class._run = original


@contextmanager
def loop_monitor(limit_s: float = MAX_CALLBACK_S, *, spikes: int = 0) -> Iterator[None]:
    """Raise AssertionError at the end if a callback used more than ``limit_s`` CPU seconds.

    Args:
        limit_s: CPU seconds of one callback.
        spikes: Longer callbacks that are taken for noise; for use where all work is done many
            more times than that.
    """
    with watched_callbacks(limit_s) as busy:
        yield
    if len(busy) > spikes:
        raise AssertionError(_report(busy))


async def run_without_long_callbacks(
    work: Callable[[], Awaitable[T]],
    *,
    limit_s: float = MAX_CALLBACK_S,
    tries: int = 3,
    ignored: str | None = None,
) -> T:
    """Return what ``work`` returns in the first try in which no callback was too long.

    Args:
        work: Can be done several times.
        limit_s: CPU seconds of one callback.
        tries: How often it is done at most.
        ignored: Part of the name of callbacks that do not count: a test's own server, say.

    Raises:
        AssertionError: In every try a callback used more than ``limit_s``.
    """
    reports: list[str] = []
    for _ in range(tries):
        with watched_callbacks(limit_s) as busy:
            made = await work()
            # The step that ends here is still running: it is measured when it gives way.
            await asyncio.sleep(0)
        counted = [each for each in busy if ignored is None or ignored not in each.what]
        if not counted:
            return made
        reports.append(_report(counted))
    raise AssertionError(f"In each of {tries} tries: " + " | ".join(reports))


def _report(busy: Sequence[BusyCallback]) -> str:
    worst = sorted(busy, key=lambda each: -each.cpu_s)[:5]
    return f"{len(busy)} callbacks blocked the event loop: {'; '.join(map(str, worst))}"


@pytest.fixture
def busy_callbacks() -> Iterator[None]:
    """Fail the test if one of its callbacks blocked the event loop."""
    with loop_monitor():
        yield


def _describe(handle: Any) -> str:
    """Name the coroutine behind a task's step, else the callback."""
    task = getattr(handle._callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        coroutine = task.get_coro()
        return f"task {task.get_name()} ({getattr(coroutine, '__qualname__', coroutine)})"
    return repr(handle._callback)
