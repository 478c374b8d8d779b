"""The seam between the channel and whatever carries its bytes (attach, pipe, ssh, exec stream)."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, Self

__all__ = ["SocketTransport", "Transport"]

READ_BYTES = 64 * 1024


class Transport(Protocol):
    """A duplex byte stream to one outpost process."""

    async def send(self, data: bytes) -> None:
        """Write all of ``data``; waits while the peer does not read.

        The bytes are queued whole, in the order of the calls, before the first wait: a caller
        cancelled while it waits leaves no torn frame behind.

        Raises:
            ConnectionError: The stream is closed.
        """
        ...

    async def receive(self) -> bytes:
        """Return the next bytes, b"" at the end of the stream.

        Raises:
            ConnectionError: The stream broke.
        """
        ...

    async def aclose(self) -> None:
        """Close both directions; a ``receive`` in progress returns or raises. Idempotent."""
        ...


class SocketTransport:
    """A connected stream socket, or the two pipes of a child, on the running loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def of(cls, connected: socket.socket) -> Self:
        """Take over a connected socket."""
        connected.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connected, limit=READ_BYTES)
        return cls(reader, writer)

    async def send(self, data: bytes) -> None:
        """Write all of ``data``."""
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self) -> bytes:
        """Return the next bytes."""
        return await self._reader.read(READ_BYTES)

    async def aclose(self) -> None:
        """Drop the connection; what was not yet sent is lost."""
        if not self._writer.transport.is_closing():  # asyncio's pipes bear no second abort
            self._writer.transport.abort()
        self._reader.feed_eof()
