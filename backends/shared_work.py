"""Work that many wait for and that is done once: an image that a hundred sandboxes need."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from hermes_rl.backends.admission import StartTurns, Turn
from hermes_rl.errors import HermesRLError, SandboxError

__all__ = ["Piece", "SharedWork"]

T = TypeVar("T")


class Piece(Generic[T]):
    """One piece of work in progress."""

    def __init__(self) -> None:
        self.begun = anyio.Event()
        self.done = anyio.Event()
        self.results: list[T] = []
        self.error: HermesRLError | None = None
        self._waiters = 0
        self._turn: Turn | None = None

    @contextmanager
    def waited_for(self) -> Iterator[None]:
        """Count a waiter. What nobody waits for goes on, but takes no place from others."""
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1
            if not self._waiters and self._turn is not None:
                self._turn.give_back()

    @asynccontextmanager
    async def turn(self, turns: StartTurns) -> AsyncIterator[None]:
        """Do the heavy part in its turn; the time that waiters allow begins with it.

        Raises:
            SandboxError: When the turn came nobody waited any more.
        """
        async with turns.turn() as turn:
            if not self._waiters:
                raise SandboxError("Nobody waits for it any more.")
            self._turn = turn
            self.begun.set()
            yield


class SharedWork(Generic[T]):
    """Remembers results by key. Failures are not remembered: the next who asks tries again.

    The work runs in ``tasks``: one that stops waiting does not stop it for the others.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._pieces: dict[str, Piece[T]] = {}

    async def get(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result for ``key``, making it if nobody has or does."""
        piece = self._piece(key, lambda _: make())
        with piece.waited_for():
            await piece.done.wait()
        return self._result(piece)

    async def get_within(
        self, limit_s: float, key: str, make: Callable[[Piece[T]], Awaitable[T]]
    ) -> T:
        """Return the result for ``key``; a wait for its :meth:`Piece.turn` does not count.

        Raises:
            TimeoutError: It took longer.
        """
        piece = self._piece(key, make)
        with piece.waited_for():
            await piece.begun.wait()
            with anyio.fail_after(limit_s):
                await piece.done.wait()
        return self._result(piece)

    def forget(self, key: str) -> None:
        """Make it anew next time. What is being made is not forgotten."""
        piece = self._pieces.get(key)
        if piece is not None and piece.done.is_set():
            del self._pieces[key]

    def _piece(self, key: str, make: Callable[[Piece[T]], Awaitable[T]]) -> Piece[T]:
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = Piece()
            self._tasks.start_soon(self._work, key, piece, make)
        return piece

    def _result(self, piece: Piece[T]) -> T:
        if piece.error is not None:
            # Each waiter raises its own copy: a shared one would collect all their tracebacks.
            raise copy.copy(piece.error)
        return piece.results[0]

    async def _work(
        self, key: str, piece: Piece[T], make: Callable[[Piece[T]], Awaitable[T]]
    ) -> None:
        piece.error = SandboxError(f"{key}: given up.")
        try:
            piece.results.append(await make(piece))
            piece.error = None
        except HermesRLError as error:
            piece.error = error
        except Exception as error:  # the boundary: one image must not end the backend
            piece.error = SandboxError(f"{key}: {error!r}")
        finally:
            if piece.error is not None:
                del self._pieces[key]
            piece.begun.set()
            piece.done.set()
