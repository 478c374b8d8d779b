"""Sweeping while a backend is connected: at once, every minute, and when somebody asks."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import anyio

from hermes_rl.errors import HermesRLError

__all__ = ["RegularSweep"]

logger = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 60.0
UNREPORTED = 1000
"""Most that is remembered of what was swept before anyone asked."""


class RegularSweep:
    """One sweep at a time; what the regular ones removed is told to who asks next.

    Args:
        remove: Removes what nobody keeps any more; returns what it removed.
        backend: Its name, for the log.
    """

    def __init__(self, remove: Callable[[], Awaitable[Sequence[str]]], *, backend: str) -> None:
        self._remove = remove
        self._backend = backend
        self._turn = anyio.Lock()
        self._unreported: list[str] = []
        self._scope = anyio.CancelScope()

    async def run(self) -> None:
        """Sweep now and every minute, until stopped or cancelled.

        A sweep that fails is logged: the sandboxes that run do not depend on it.
        """
        with self._scope:
            while True:
                try:
                    async with self._turn:
                        removed = await self._remove()
                        self._unreported = [*self._unreported, *removed][-UNREPORTED:]
                except (HermesRLError, OSError) as error:
                    logger.info("%s: sweeping: %s", self._backend, error)
                await anyio.sleep(SWEEP_INTERVAL_S)

    def stop(self) -> None:
        """End :meth:`run`."""
        self._scope.cancel()

    async def now(self) -> list[str]:
        """Sweep; return all that was removed since last asked.

        Raises:
            HermesRLError: What cannot be swept; says why.
        """
        async with self._turn:
            removed = await self._remove()
            removed, self._unreported = [*self._unreported, *removed], []
        return removed
