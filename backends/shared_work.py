"""Work that many wait for and that is done once: an image that a hundred sandboxes need."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from hermes_rl.errors import HermesRLError, SandboxError

__all__ = ["SharedWork"]

T = TypeVar("T")


class _Piece(Generic[T]):
    def __init__(self) -> None:
        self.done = anyio.Event()
        self.results: list[T] = []
        self.error: HermesRLError | None = None


class SharedWork(Generic[T]):
    """Remembers results by key. Failures are not remembered: the next who asks tries again.

    The work runs in ``tasks``: one that stops waiting does not stop it for the others.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self._tasks = tasks
        self._pieces: dict[str, _Piece[T]] = {}

    async def get(self, key: str, make: Callable[[], Awaitable[T]]) -> T:
        """Return the result for ``key``, making it if nobody has or does."""
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = _Piece()
            self._tasks.start_soon(self._work, key, piece, make)
        await piece.done.wait()
        if piece.error is not None:
            # Each waiter raises its own copy: a shared one would collect all their tracebacks.
            raise copy.copy(piece.error)
        return piece.results[0]

    async def _work(self, key: str, piece: _Piece[T], make: Callable[[], Awaitable[T]]) -> None:
        piece.error = SandboxError(f"{key}: given up.")
        try:
            piece.results.append(await make())
            piece.error = None
        except HermesRLError as error:
            piece.error = error
        except Exception as error:  # the boundary: one image must not end the backend
            piece.error = SandboxError(f"{key}: {error!r}")
        finally:
            if piece.error is not None:
                del self._pieces[key]
            piece.done.set()
