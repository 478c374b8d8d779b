"""A terminal session in a loopback sandbox: a shell on a pseudo-terminal, read and written here."""

from __future__ import annotations

import os
import pty
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
from anyio.abc import Process

from hermes_rl.testing.loopback_boxes import Box, ContainerBox

__all__ = ["Terminal"]

READ_BYTES = 64 * 1024
SHELL = ("/bin/sh", "-c", "exec $(command -v zsh || command -v bash || echo sh)")


class Terminal:
    """One session. It outlives whoever watches it, and ends with its shell or its box."""

    def __init__(self, process: Process, master: int) -> None:
        self._process = process
        self._master = master
        self._watcher: Callable[[bytes], Awaitable[None]] | None = None
        self.ended = anyio.Event()
        self.exit_code: int | None = None

    @classmethod
    async def open(cls, box: Box) -> Terminal:
        """Start the shell.

        Raises:
            OSError: There is no terminal to be had.
        """
        master, slave = pty.openpty()
        os.set_blocking(master, False)
        argv = box.argv(SHELL, tty=True)
        if not isinstance(box, ContainerBox):
            argv = ["setsid", "--ctty", *argv]
        try:
            process = await anyio.open_process(
                argv,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                **box.spawn_options(None, {"TERM": "xterm"}),  # type: ignore[arg-type]
            )
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        return cls(process, master)

    def watch(self, watcher: Callable[[bytes], Awaitable[None]] | None) -> None:
        """Let output go to ``watcher``, or nowhere."""
        self._watcher = watcher

    async def run(self) -> None:
        """Read until the shell is gone. Run it in the server's task group."""
        try:
            while data := await self._read():
                if self._watcher is not None:
                    with suppress(OSError):
                        await self._watcher(data)
            self.exit_code = _as_shells_do(await self._process.wait())
        finally:
            self.ended.set()
            os.close(self._master)

    async def _read(self) -> bytes:
        while True:
            await anyio.wait_readable(self._master)
            try:
                return os.read(self._master, READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""  # nobody holds the other end any more

    async def write(self, data: bytes) -> None:
        """Type."""
        while data and not self.ended.is_set():
            try:
                data = data[os.write(self._master, data) :]
            except BlockingIOError:
                await anyio.wait_writable(self._master)

    def kill(self) -> None:
        """End the shell, or the client that holds it."""
        with suppress(ProcessLookupError):
            self._process.kill()


def _as_shells_do(code: int) -> int:
    return 128 - code if code < 0 else code
