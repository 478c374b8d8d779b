"""A deadline that stands still while work waits.

A rollout that waits for a permit, for the end of a rate limit or for a server that is down does
not work, and must not be scored as if its agent had been slow. So whoever waits says so::

    with waiting():
        await limiter.acquire()

and the deadline of the work around it, if there is one, moves on by as long as the wait took. What
turned out to have been a wait only afterwards is told by :func:`note_waited`.

The allowance bounds all moves together, because sandboxes do not live for ever. Waiting beyond it
is not forgiven but known: :attr:`WorkDeadline.unforgiven_s` tells a slow agent from a run that was
kept waiting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import anyio

__all__ = ["WorkDeadline", "note_waited", "waiting"]

_current: ContextVar[WorkDeadline | None] = ContextVar("work_deadline", default=None)


class WorkDeadline:
    """Cuts off the body of its ``with`` block after so many seconds of work.

    Args:
        seconds: Of work; None = no deadline.
        allowance_s: Seconds of waiting that are forgiven.
        clock: Seconds, monotonic; for :attr:`is_over`. The cut itself goes by the event loop.

    Attributes:
        waited_s: Seconds waited so far.
        was_cut: The body was cut off.
    """

    def __init__(
        self, seconds: float | None, *, allowance_s: float, clock: Callable[[], float]
    ) -> None:
        self.waited_s = 0.0
        self.was_cut = False
        self._seconds = math.inf if seconds is None else seconds
        self._allowance_s = allowance_s
        self._clock = clock
        self._started_at = clock()
        self._is_waiting = False
        self._scope: anyio.CancelScope | None = None

    @property
    def forgiven_s(self) -> float:
        """Seconds of waiting by which the deadline has moved."""
        return min(self.waited_s, self._allowance_s)

    @property
    def unforgiven_s(self) -> float:
        """Seconds of waiting beyond the allowance; never any without an allowance."""
        return self.waited_s - self.forgiven_s if self._allowance_s > 0 else 0.0

    @property
    def is_over(self) -> bool:
        """Whether all seconds of work are used up."""
        return self._clock() - self._started_at - self.forgiven_s >= self._seconds

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the body under the deadline; it ends silently when cut, with ``was_cut`` set."""
        token = _current.set(self)
        try:
            with anyio.move_on_after(self._seconds) as self._scope:
                yield
        finally:
            _current.reset(token)
        self.was_cut = self._scope.cancelled_caught

    @contextmanager
    def wait(self) -> Iterator[None]:
        """See :func:`waiting`."""
        scope = self._scope
        if self._is_waiting or scope is None:
            yield
            return
        self._is_waiting = True
        started_at, deadline_at = anyio.current_time(), scope.deadline
        scope.deadline = deadline_at + self._allowance_s - self.forgiven_s
        try:
            yield
        finally:
            self._is_waiting = False
            # In one step: a deadline set into the past, if only for a moment, cuts at once.
            scope.deadline = deadline_at + self._forgive(anyio.current_time() - started_at)

    def note(self, seconds: float) -> None:
        """See :func:`note_waited`."""
        moved_s = self._forgive(seconds)
        if self._scope is not None:
            self._scope.deadline += moved_s

    def _forgive(self, seconds: float) -> float:
        before_s = self.forgiven_s
        self.waited_s += seconds
        return self.forgiven_s - before_s


@contextmanager
def waiting() -> Iterator[None]:
    """Say that the body waits and does no work; the deadline around it stands still."""
    deadline = _current.get()
    if deadline is None:
        yield
        return
    with deadline.wait():
        yield


def note_waited(seconds: float) -> None:
    """Say that the last ``seconds`` turned out to have been no work, e.g. a failed request."""
    deadline = _current.get()
    if deadline is not None:
        deadline.note(seconds)
