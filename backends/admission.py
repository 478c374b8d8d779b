"""How many sandboxes start and are removed at once, and commands that a daemon itself starts.

Removals come first. A daemon saturates at about two operations per core, whatever is asked of it;
beyond that each only takes longer. Starting and removing have a limit each, so that a long queue
of starts never holds up clean-up, and no start begins while a removal is waiting for its turn. A
command that the daemon itself starts is as heavy as that only until it runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

__all__ = ["Admission", "StartTurns", "Turn"]


class Admission:
    """The two limits of one backend.

    Args:
        starting: Sandboxes that start at once.
        removing: Sandboxes that are removed at once.
    """

    def __init__(self, *, starting: int, removing: int) -> None:
        self._starting = anyio.CapacityLimiter(starting)
        self._removing = anyio.CapacityLimiter(removing)
        self._waiting = 0
        self._nobody_waits = anyio.Event()

    @asynccontextmanager
    async def start(self) -> AsyncIterator[None]:
        """Hold one of the places for starting."""
        async with self._starting:
            while self._waiting:
                await self._nobody_waits.wait()
            yield

    @asynccontextmanager
    async def removal(self) -> AsyncIterator[None]:
        """Hold one of the places for removing; starts wait while this one does."""
        borrower = object()
        await self._take_turn(borrower)
        try:
            yield
        finally:
            self._removing.release_on_behalf_of(borrower)

    async def _take_turn(self, borrower: object) -> None:
        if not self._waiting:
            self._nobody_waits = anyio.Event()
        self._waiting += 1
        try:
            await self._removing.acquire_on_behalf_of(borrower)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._nobody_waits.set()


class Turn:
    """A place among what is starting, until it is given back."""

    def __init__(self, places: anyio.CapacityLimiter) -> None:
        self._places = places
        self._is_held = False

    async def wait(self) -> None:
        """Wait for the place."""
        await self._places.acquire_on_behalf_of(self)
        self._is_held = True

    def give_back(self) -> None:
        """Let another one start. Idempotent."""
        if self._is_held:
            self._is_held = False
            self._places.release_on_behalf_of(self)


class StartTurns:
    """A limit on what is heavy only while it starts.

    Args:
        starting: How many start at once.
    """

    def __init__(self, starting: int) -> None:
        self._places = anyio.CapacityLimiter(starting)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Turn]:
        """Hold a place until it is given back, at the latest until the context is left."""
        turn = Turn(self._places)
        await turn.wait()
        try:
            yield turn
        finally:
            turn.give_back()
