"""One ssh session's bytes, as the channel to an outpost wants them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import anyio
import asyncssh

__all__ = ["SSHStream"]

UNREAD_BYTES = 1 << 20
"""Arrived but not yet read; above this the session's window is left to fill."""
BEFORE_MARK_BYTES = 64 * 1024
"""Most that a login shell may print before the program on the host does."""
COMPLAINT_BYTES = 4096
"""Of what comes on standard error; the end is kept."""


class SSHStream(asyncssh.SSHClientSession[bytes]):
    """A :class:`~hermes_rl.backends.outpost.transport.Transport` over one session.

    What the login shell prints (a greeting in its start files, say) is dropped: the stream begins
    after the ``mark``.

    Args:
        mark: What the program on the host writes first.
        released: Called once, when the session is over.
    """

    def __init__(self, mark: bytes, released: Callable[[], object]) -> None:
        self.closed = anyio.Event()
        """Set when the session is over; then the exit status is known, if it ever will be."""
        self.begun = False
        """The mark has come."""
        self.exit_status: int | None = None
        self.exit_signal = ""
        self.lost = ""
        """Why the whole connection ended; "" while it has not."""
        self._mark = mark
        self._released = released
        self._complaint = bytearray()
        self._preface = bytearray()
        self._chunks: deque[bytes] = deque()
        self._unread_bytes = 0
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._change = anyio.Event()
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None

    @property
    def complaint(self) -> str:
        """The last line of standard error, or of what the login shell said."""
        text = bytes(self._complaint) or bytes(self._preface)
        lines = text.decode("utf-8", "replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    # What asyncssh calls

    def connection_made(self, chan: asyncssh.SSHClientChannel[bytes]) -> None:
        """Remember the channel."""
        self._channel = chan

    def data_received(self, data: bytes, datatype: int | None) -> None:
        """Take what came."""
        if datatype is not None:
            self._complaint += data
            del self._complaint[:-COMPLAINT_BYTES]
        elif self.begun:
            self._keep(data)
        else:
            self._look_for_mark(data)

    def _look_for_mark(self, data: bytes) -> None:
        self._preface += data
        before, mark, rest = bytes(self._preface).partition(self._mark)
        if mark:
            self.begun = True
            self._preface = bytearray(before)
            self._keep(rest)
        elif len(self._preface) > BEFORE_MARK_BYTES:
            del self._preface[: -len(self._mark)]

    def _keep(self, data: bytes) -> None:
        if not data:
            return
        self._chunks.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > UNREAD_BYTES and self._channel is not None:
            self._is_reading_paused = True
            self._channel.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Keep the session until the host closes it: the exit status comes after this."""
        return True

    def exit_status_received(self, status: int) -> None:
        """Take the exit code."""
        self.exit_status = status

    def exit_signal_received(self, signal: str, core_dumped: bool, msg: str, lang: str) -> None:
        """Take the signal that ended the program."""
        self.exit_signal = signal

    def pause_writing(self) -> None:
        """Let senders wait."""
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        """Let senders go on."""
        self._is_writing_paused = False
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end, of this session or of the whole connection."""
        if exc is not None:
            self.lost = str(exc) or type(exc).__name__
        self._end()

    def _end(self) -> None:
        if not self.closed.is_set():
            self.closed.set()
            self._released()
        self._wake()

    def _wake(self) -> None:
        self._change.set()
        self._change = anyio.Event()

    # What the outpost's channel calls

    async def send(self, data: bytes) -> None:
        """Write all of ``data``; waits while too much is unsent.

        Raises:
            ConnectionError: The session is over.
        """
        if self._channel is None or self.closed.is_set():
            raise ConnectionResetError(self.lost or "the ssh session is over")
        self._channel.write(data)
        while self._is_writing_paused and not self.closed.is_set():
            await self._change.wait()

    async def receive(self) -> bytes:
        """Return the next bytes, b"" at the end of the session.

        Raises:
            ConnectionError: The connection broke.
        """
        while not self._chunks:
            if self.closed.is_set():
                if self.lost:
                    raise ConnectionResetError(self.lost)
                return b""
            await self._change.wait()
        data = self._chunks.popleft()
        self._unread_bytes -= len(data)
        if self._is_reading_paused and self._unread_bytes <= UNREAD_BYTES // 2:
            self._is_reading_paused = False
            if self._channel is not None:
                self._channel.resume_reading()
        return data

    async def aclose(self) -> None:
        """Close both directions, whatever is unsent. Idempotent."""
        if self._channel is not None:
            self._channel.abort()
        self._end()
