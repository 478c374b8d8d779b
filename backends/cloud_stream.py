"""The bytes of an outpost carried by a vendor's SDK, which takes and gives them call by call."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque

import anyio

__all__ = ["CloudStream"]

logger = logging.getLogger(__name__)

UNSENT_BYTES = 1 << 20
"""Queued but not yet taken by the vendor; above this a sender waits."""
PIECE_BYTES = 1 << 20
"""Most that goes into one call; a vendor's requests have a limit of a few MiB."""
UNREAD_PIECES = 4
"""Arrived but not yet read by the channel; above this the SDK's reader waits."""


class CloudStream(ABC):
    """A :class:`~hermes_rl.backends.outpost.transport.Transport` over an SDK.

    ``run`` does the work, in the backend's task group, until the stream ends or is closed. So a
    cancelled sender or receiver never interrupts a call of the SDK, which would lose bytes.
    """

    def __init__(self) -> None:
        self.closed = anyio.Event()
        """Set once nothing of the SDK's is left open."""
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._change = anyio.Event()
        self._inbox, self._outbox = anyio.create_memory_object_stream[bytes](UNREAD_PIECES)
        self._scope = anyio.CancelScope()
        self._failure = ""

    @abstractmethod
    async def put(self, data: bytes) -> None:
        """Give the peer some bytes.

        Raises:
            OSError: The stream broke.
        """

    @abstractmethod
    async def take_all(self) -> None:
        """Hand every piece that arrives to :meth:`arrived`, until the stream ends.

        Raises:
            OSError: The stream broke.
        """

    @abstractmethod
    async def release(self) -> None:
        """Close what the SDK holds open for this stream; called once, at the end of ``run``."""

    async def arrived(self, data: bytes) -> None:
        """Take a piece from the SDK; waits while the channel does not read."""
        if data:
            await self._inbox.send(data)

    async def run(self) -> None:
        """Carry bytes both ways; never raises."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write)
                    await self._read()
                    tasks.cancel_scope.cancel()
        finally:
            self._close()
            with anyio.CancelScope(shield=True):
                await self.release()
            self.closed.set()

    async def _read(self) -> None:
        try:
            await self.take_all()
        except (OSError, anyio.BrokenResourceError) as error:
            self._failure = str(error) or type(error).__name__
        self._inbox.close()

    async def _write(self) -> None:
        while True:
            while not self._unsent:
                await self._change.wait()
            data = self._next_piece()
            try:
                await self.put(data)
            except OSError as error:
                self._failure = str(error) or type(error).__name__
                self._scope.cancel()
                return
            self._unsent_bytes -= len(data)
            self._wake()

    def _next_piece(self) -> bytes:
        parts = [self._unsent.popleft()]
        size = len(parts[0])
        while self._unsent and size + len(self._unsent[0]) <= PIECE_BYTES:
            parts.append(self._unsent.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    def _wake(self) -> None:
        self._change.set()
        self._change = anyio.Event()

    def _close(self) -> None:
        self._scope.cancel()
        self._inbox.close()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._wake()

    async def send(self, data: bytes) -> None:
        """Write all of ``data``; waits while too much is unsent.

        Raises:
            ConnectionError: The stream is closed.
        """
        self._check()
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        self._wake()
        while self._unsent_bytes > UNSENT_BYTES:
            await self._change.wait()
        self._check()

    def _check(self) -> None:
        if self._scope.cancel_called or self._failure:
            raise ConnectionResetError(self._failure or "the stream is closed")

    async def receive(self) -> bytes:
        """Return the next bytes, b"" at the end of the stream.

        Raises:
            ConnectionError: The stream broke.
        """
        try:
            return await self._outbox.receive()
        except anyio.EndOfStream:
            if self._failure:
                raise ConnectionResetError(self._failure) from None
            return b""

    async def aclose(self) -> None:
        """Close both directions. Idempotent."""
        self._close()
