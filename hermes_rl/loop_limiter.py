"""A limit on worker threads that modules may hold: one per event loop, made at its first use.

anyio's own limiter, made at import, belongs to the first loop that uses it. Where a program runs
engines in several threads, a task that waits there is woken from another loop's thread, which is to
say: perhaps never (tried: two loops that contend for one hang within a second).
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import RunVar

__all__ = ["LoopLimiter"]


class LoopLimiter(anyio.CapacityLimiter):
    """Give it to :func:`anyio.to_thread.run_sync`; it can do nothing else.

    Args:
        total_tokens: Threads at once, per event loop.
    """

    def __new__(cls, total_tokens: float) -> Self:
        """Make this and not the running backend's own kind, as its base would."""
        return object.__new__(cls)

    def __init__(self, total_tokens: float) -> None:
        self._total_tokens = total_tokens
        self._of_this_loop: RunVar[anyio.CapacityLimiter] = RunVar("LoopLimiter")

    def _limiter(self) -> anyio.CapacityLimiter:
        try:
            return self._of_this_loop.get()
        except LookupError:
            limiter = anyio.CapacityLimiter(self._total_tokens)
            self._of_this_loop.set(limiter)
            return limiter

    async def __aenter__(self) -> None:
        await self._limiter().__aenter__()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self._limiter().__aexit__(exc_type, exc_val, exc_tb)
