"""A bounded pool of daemon threads: what a stuck tool holds never keeps a process from ending.

The standard pool joins its threads when the interpreter exits, however long that takes, and does
not hand the caller's context variables on.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

__all__ = ["BoundedThreads"]

P = ParamSpec("P")
T = TypeVar("T")

IDLE_S = 5.0
"""An idle thread ends after this long."""


class BoundedThreads(Executor):
    """At most ``max_threads`` daemon threads, started when there is work for them.

    Attributes:
        name: Of the threads, before a number.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self.name = name
        self._max_threads = max_threads
        self._changed = threading.Condition()
        self._queue: deque[tuple[Future[Any], Callable[[], None]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._started = 0
        self._is_shut = False

    @property
    def max_threads(self) -> int:
        """The bound."""
        return self._max_threads

    @property
    def _max_workers(self) -> int:
        """The bound, for code that was written for the standard pool."""
        return self._max_threads

    def resize(self, max_threads: int) -> None:
        """Change the bound; threads above it end when they are idle."""
        if max_threads < 1:
            raise ValueError("a pool needs at least one thread")
        with self._changed:
            self._max_threads = max_threads
            self._start_threads()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn`` in a thread, in a copy of the caller's context."""
        future: Future[T] = Future()
        context = contextvars.copy_context()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = context.run(fn, *args, **kwargs)
            except BaseException as error:  # Handed to whoever waits, SystemExit too.
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._changed:
            if self._is_shut:
                raise RuntimeError("the pool is shut down")
            self._queue.append((future, work))
            self._start_threads()
            self._changed.notify()
        return future

    def _start_threads(self) -> None:
        wanted = min(len(self._queue) - self._idle, self._max_threads - len(self._threads))
        for _ in range(wanted):
            self._started += 1
            thread = threading.Thread(
                target=self._work, name=f"{self.name}-{self._started}", daemon=True
            )
            self._threads.add(thread)
            thread.start()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            work()
            del work  # Or it would keep its result alive while the thread is idle.

    def _next(self) -> Callable[[], None] | None:
        """Return the next piece of work; None = this thread ends."""
        with self._changed:
            self._idle += 1
            try:
                self._changed.wait_for(
                    lambda: bool(self._queue) or self._is_shut or self._is_over(), IDLE_S
                )
            finally:
                self._idle -= 1
            if self._queue and not self._is_over():
                return self._queue.popleft()[1]
            self._threads.discard(threading.current_thread())
            self._changed.notify_all()
            return None

    def _is_over(self) -> bool:
        return len(self._threads) > self._max_threads

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more work; with ``cancel_futures`` drop what has not begun."""
        with self._changed:
            self._is_shut = True
            while cancel_futures and self._queue:
                self._queue.popleft()[0].cancel()
            self._changed.notify_all()
        if wait:
            self.join(None)

    def join(self, timeout_s: float | None) -> bool:
        """Wait until every thread has ended, after :meth:`shutdown`; False if some have not."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            threads = list(self._threads)
        for thread in threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)
