"""The stream to a container's process, through aiodocker.

aiodocker has no public way to tell whether a stream is still open, to write without joining its
one queue of waiters, or to drop a stream at once. The
private names that are needed, ``Stream._resp`` and ``Stream._closed``, are used here only, are
pinned by the version range of the extra ``docker``, and have a test each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import aiohttp
import anyio
from aiodocker.stream import Stream

__all__ = ["AttachTransport", "converse"]

SEND_BUFFER_BYTES = 1 << 20
"""Written but not yet taken by the daemon; above this a sender waits."""
FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05
STDERR_KEPT_BYTES = 4096
"""What is kept of an outpost's standard error, for the message if it does not start."""


class AttachTransport:
    """The stream to a container's main process, or to a command started by the engine.

    A :class:`~hermes_rl.backends.outpost.transport.Transport`: receives standard output, keeps the
    end of standard error in ``stderr``.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._closed = False
        self.stderr = b""

    async def open(self) -> None:
        """Connect: returns when the engine has switched protocols (101).

        A container may be started only after that, or its first output is lost.
        """
        try:
            await self._stream.__aenter__()
        except BaseException:
            self._drop()
            raise

    async def send(self, data: bytes) -> None:
        """Write all of ``data``; waits while the peer does not read.

        aiohttp's own wait is one future for all writers: a cancelled one would end the others'. So
        the buffer is looked at instead, in growing intervals; while there is room nothing waits.

        Raises:
            ConnectionError: The stream is closed.
        """
        self._transport().write(data)
        pause_s = FIRST_PAUSE_S
        while self._transport().get_write_buffer_size() > SEND_BUFFER_BYTES:
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def receive(self) -> bytes:
        """Return the next bytes of standard output, b"" at the end."""
        while True:
            message = await self.receive_any()
            if message is None:
                return b""
            fd, data = message
            if fd == 1 and data:
                return data
            self.stderr = (self.stderr + data)[-STDERR_KEPT_BYTES:]

    async def receive_any(self) -> tuple[int, bytes] | None:
        """Return the next piece of output and its file descriptor, None at the end."""
        if self._closed:
            return None
        try:
            message = await self._stream.read_out()
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionResetError(f"the container's stream broke: {error}") from error
        return None if message is None else (message.stream, message.data)

    async def aclose(self) -> None:
        """Close both directions. Idempotent."""
        self._drop()

    def _transport(self) -> asyncio.WriteTransport:
        response = self._stream._resp
        if not self._closed and response is not None and response.connection is not None:
            # By no class: uvloop's transports are none of asyncio's.
            transport: asyncio.WriteTransport | None = response.connection.transport
            if transport is not None and not transport.is_closing():
                return transport
        raise ConnectionResetError("the container's stream is closed")

    def _drop(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._stream._closed = True
        if self._stream._resp is not None:
            self._stream._resp.close()


async def converse(
    transport: AttachTransport,
    sink: Callable[[int, bytes], None],
    stdin: bytes,
    *,
    beside: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    """Send input and pass on output until the output ends; ``beside`` runs meanwhile."""
    broken: ConnectionError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_feed, transport, stdin)
        tasks.start_soon(beside)
        try:
            while (message := await transport.receive_any()) is not None:
                sink(*message)
        except ConnectionError as error:
            broken = error
        tasks.cancel_scope.cancel()
    if broken is not None:
        raise broken


async def _feed(transport: AttachTransport, data: bytes) -> None:
    """Write a command's input; one that ends without reading it is no failure."""
    with suppress(ConnectionError):
        await transport.send(data)
