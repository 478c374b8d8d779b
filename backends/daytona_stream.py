"""The stream of one Daytona terminal session, whose shell has become the outpost.

Terminal bytes travel as binary websocket messages both ways. Until the outpost's loader has made
the terminal a plain byte stream and printed its mark, what comes is the shell's: it is kept for
the message if the start fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.daytona_errors import TABLE
from hermes_rl.backends.outpost.start import NO_PYTHON_EXIT_CODE, PythonMissing
from hermes_rl.backends.shipment import NO_TERMINAL_EXIT_CODE, TerminalMissing
from hermes_rl.errors import BackendUnavailable, CreateError, HermesRLError

__all__ = ["DaytonaStream"]

WRITE_LIMIT_S = 120.0
CLOSE_LIMIT_S = 10.0
SHELL_BYTES = 64 * 1024
"""Most that a shell may print before the mark."""
PIECE_BYTES = 64 * 1024
"""One message: a terminal takes 4 KiB at a time, and messages of megabytes help nobody."""


class DaytonaStream(CloudStream):
    """Carries bytes to and from an ``AsyncPtyHandle``.

    Args:
        mark: What the loader prints before the stream begins.
    """

    def __init__(self, mark: bytes) -> None:
        super().__init__()
        self.begun = anyio.Event()
        """Set at the mark."""
        self.ended = anyio.Event()
        """Set when the session has ended."""
        self.shell_text = bytearray()
        self._mark = mark
        self._handle: Any = None

    async def open(self, connect: Callable[[Callable[[bytes], Awaitable[None]]], Any]) -> None:
        """Open the session with ``connect``, which gets the callback for what arrives."""
        self._handle = await connect(self._received)

    async def type(self, line: str) -> None:
        """Type a line to the shell."""
        await self._handle.send_input(line)

    async def _received(self, data: bytes) -> None:
        """Called by the SDK for every message; it reads no further until we return."""
        try:
            if self.begun.is_set():
                await self.arrived(data)
            else:
                await self._look_for_mark(data)
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return  # nobody reads any more

    async def _look_for_mark(self, data: bytes) -> None:
        self.shell_text += data
        _, mark, rest = bytes(self.shell_text).partition(self._mark)
        if mark:
            self.begun.set()
            await self.arrived(rest)
        elif len(self.shell_text) > SHELL_BYTES:
            del self.shell_text[: -len(self._mark)]

    async def wait_begun(self, *, limit_s: float) -> None:
        """Wait for the mark.

        Raises:
            PythonMissing: The shell found no python3.
            TerminalMissing: Nor stty, which our own needs.
            CreateError: The session ended, or nothing of the kind came in time.
            BackendUnavailable: The connection was lost.
        """
        with anyio.move_on_after(limit_s):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_end, tasks.cancel_scope)
                await self.begun.wait()
                tasks.cancel_scope.cancel()
        if self.begun.is_set():
            return
        code = self._handle.exit_code
        if code == NO_PYTHON_EXIT_CODE:
            raise PythonMissing
        if code == NO_TERMINAL_EXIT_CODE:
            raise TerminalMissing("the image has no stty, which a supervisor on a terminal needs")
        if code is None and self.ended.is_set():
            raise BackendUnavailable("The connection to a new sandbox's terminal was lost.")
        lines = self.shell_text.decode("utf-8", "replace").strip().splitlines()
        raise CreateError(f"The sandbox's supervisor does not start: {(lines or ['silence'])[-1]}")

    async def _watch_end(self, scope: anyio.CancelScope) -> None:
        await self._handle.wait()
        self.ended.set()
        scope.cancel()

    async def put(self, data: bytes) -> None:
        """Write to the terminal."""
        try:
            with TABLE.call("use", limit_s=WRITE_LIMIT_S):
                for start in range(0, len(data), PIECE_BYTES):
                    await self._handle.send_input(data[start : start + PIECE_BYTES])
        except HermesRLError as error:
            raise ConnectionResetError(str(error)) from error

    async def take_all(self) -> None:
        """Wait for the session's end; what arrives is passed on by the callback."""
        try:
            with TABLE.call("use", limit_s=None):
                await self._handle.wait()
        except HermesRLError as error:
            raise ConnectionResetError(str(error)) from error

    async def release(self) -> None:
        """Close the websocket."""
        if self._handle is not None:
            with anyio.move_on_after(CLOSE_LIMIT_S):
                await self._handle.disconnect()

    @property
    def exit_code(self) -> int | None:
        """Of what ran in the terminal; None while it runs or if nobody knows."""
        return None if self._handle is None else self._handle.exit_code
