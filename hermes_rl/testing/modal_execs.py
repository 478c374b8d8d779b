"""Execs of the loopback Modal: processes whose streams survive a broken connection, by offset."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
from anyio.abc import ByteReceiveStream, Process, TaskGroup

__all__ = ["Exec", "Output"]

PIECE_BYTES = 256 * 1024
UNREAD_BYTES = 4 << 20
"""Above this the process is no longer read from."""
REPLAY_BYTES = 1 << 20
"""Kept of what was read already, for a reader that comes back."""


class Output:
    """One output stream: kept until read, and a little longer."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._start = 0
        self._ended = False
        self._change = anyio.Event()

    def _changed(self) -> None:
        self._change.set()
        self._change = anyio.Event()

    async def fill(self, stream: ByteReceiveStream) -> None:
        """Read the process' end until it closes."""
        with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            while True:
                data = await stream.receive(PIECE_BYTES)
                while len(self._data) > UNREAD_BYTES:
                    await self._change.wait()
                self._data += data
                self._changed()
        self.end()

    def end(self) -> None:
        """Nothing more comes."""
        self._ended = True
        self._changed()

    async def pieces(self, offset: int) -> AsyncIterator[bytes]:
        """Yield the stream from ``offset`` to its end."""
        while True:
            at = max(0, offset - self._start)
            piece = bytes(self._data[at : at + PIECE_BYTES])
            if piece:
                yield piece
                offset += len(piece)
                self._forget(offset)
            elif self._ended:
                return
            else:
                await self._change.wait()

    def _forget(self, read_to: int) -> None:
        excess = read_to - self._start - REPLAY_BYTES
        if excess > 0:
            del self._data[:excess]
            self._start += excess
            self._changed()


class Exec:
    """One command started in a sandbox."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.stdout = Output()
        self.stderr = Output()
        self.ended = anyio.Event()
        self.written = 0
        self.stdin_closed = False
        self._writing = anyio.Lock()

    def start(self, tasks: TaskGroup) -> None:
        """Begin to carry its streams."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        tasks.start_soon(self.stdout.fill, self.process.stdout)
        tasks.start_soon(self.stderr.fill, self.process.stderr)
        tasks.start_soon(self._reap)

    async def _reap(self) -> None:
        try:
            await self.process.wait()
            self.ended.set()
        except BaseException:
            self.process.kill()
            with anyio.CancelScope(shield=True):
                await self.process.aclose()  # before the event loop is closed
            raise

    @property
    def status(self) -> tuple[int, int] | None:
        """(exit code, 0) or (0, signal); None while it runs."""
        code = self.process.returncode
        if code is None or not self.ended.is_set():
            return None
        if code < 0 or code > 128:
            return (0, -code if code < 0 else code - 128)
        return (code, 0)

    async def write(self, offset: int, data: bytes, *, eof: bool) -> None:
        """Write to standard input; what was written already is skipped.

        Raises:
            OSError: It is closed, or does not follow what was written.
        """
        async with self._writing:
            if offset > self.written:
                raise OSError(f"write at {offset}, but only {self.written} bytes are there")
            fresh = data[self.written - offset :]
            if self.process.stdin is None or (self.stdin_closed and fresh):
                raise OSError("standard input is closed")
            if fresh:
                try:
                    await self.process.stdin.send(fresh)
                except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                    raise OSError("the process does not read any more") from None
                self.written += len(fresh)
            if eof and not self.stdin_closed:
                self.stdin_closed = True
                await self.process.stdin.aclose()

    async def kill(self) -> None:
        """End it; its output ends too."""
        with suppress(ProcessLookupError):
            self.process.kill()
        if self.process.stdin is not None:
            with suppress(OSError, anyio.BrokenResourceError):
                await self.process.stdin.aclose()
        self.stdout.end()
        self.stderr.end()
