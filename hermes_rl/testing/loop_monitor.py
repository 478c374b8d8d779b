"""A monitor that fails when a callback keeps the event loop busy for too long.

CPU time of the loop's thread is measured, not wall time, so a busy machine makes no false alarm::

    def test_something():
        with loop_monitor():
            asyncio.run(main())

or, in a test module, ``from hermes_rl.testing.loop_monitor import busy_callbacks`` and the
fixture's name as an argument of a test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from hermes_rl.garbage import no_full_collections

__all__ = ["MAX_CALLBACK_S", "BusyCallback", "busy_callbacks", "loop_monitor"]

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
def loop_monitor(limit_s: float = MAX_CALLBACK_S) -> Iterator[None]:
    """Raise AssertionError at the end if a callback used more than ``limit_s`` CPU seconds."""
    with watched_callbacks(limit_s) as busy:
        yield
    if busy:
        worst = sorted(busy, key=lambda each: -each.cpu_s)[:5]
        listed = "; ".join(map(str, worst))
        raise AssertionError(f"{len(busy)} callbacks blocked the event loop: {listed}")


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
