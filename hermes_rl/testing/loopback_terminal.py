"""A terminal session in a loopback sandbox: a shell on a pseudo-terminal, read and written here."""

from __future__ import annotations

import os
import pty
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
from anyio.abc import Process

from hermes_rl.backends.runtime import Runtime, ensure_runtime
from hermes_rl.sandbox import BackendSettings
from hermes_rl.testing.loopback_boxes import Box, ContainerBox

__all__ = ["BRIDGE_DIR", "Terminal", "bridge_interpreter"]

READ_BYTES = 64 * 1024
SHELL = ("/bin/sh", "-c", "exec $(command -v zsh || command -v bash || echo sh)")
_BRIDGE = """
import os, select, sys
child, master = os.forkpty()
if not child:
    os.execvp(sys.argv[1], sys.argv[1:])
os.set_blocking(master, False)
typed, sources = b"", [master, 0]
while True:
    wanted = sources if len(typed) < 65536 else [master]
    readable, writable, _ = select.select(wanted, [master] if typed else [], [])
    try:
        if writable:
            typed = typed[os.write(master, typed):]
        shown = os.read(master, 65536) if master in readable else b""
    except BlockingIOError:
        continue
    except OSError:
        break
    while shown:
        shown = shown[os.write(1, shown):]
    if 0 in readable:
        data = os.read(0, 65536)
        typed += data
        if not data:
            sources = [master]
status = os.waitpid(child, 0)[1]
os._exit(128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
"""
"""Makes a terminal in a container. Docker's own gives up now and then amid megabytes."""
BRIDGE_DIR = "/.loopback"
"""Where containers see the interpreter that runs the bridge; images may have none."""


async def bridge_interpreter() -> Runtime:
    """Return the directory to mount at :data:`BRIDGE_DIR`."""
    return await ensure_runtime(BackendSettings(run_id="").cache_dir)


class Terminal:
    """One session. It outlives whoever watches it, and ends with its shell or its box.

    Args:
        process: The shell, or what carries it.
        source: Descriptor that its output is read from; never blocks.
        target: What is typed goes here; never blocks.
    """

    def __init__(self, process: Process, source: int, target: int) -> None:
        self._process = process
        self._source = source
        self._target = target
        self._watcher: Callable[[bytes], Awaitable[None]] | None = None
        self.ended = anyio.Event()
        self.exit_code: int | None = None

    @classmethod
    async def open(cls, box: Box) -> Terminal:
        """Start the shell.

        Raises:
            OSError: There is no terminal to be had.
        """
        if isinstance(box, ContainerBox):
            bridge = (await bridge_interpreter()).code_argv(_BRIDGE, *SHELL, mount=BRIDGE_DIR)
            argv = box.argv(bridge, env={"TERM": "xterm"})
            theirs_in, target = os.pipe()
            source, theirs_out = os.pipe()
        else:
            argv = ["setsid", "--ctty", *box.argv(SHELL)]
            source, theirs_in = pty.openpty()
            target, theirs_out = os.dup(source), os.dup(theirs_in)
        for ours in (source, target):
            os.set_blocking(ours, False)
        try:
            process = await anyio.open_process(
                argv,
                stdin=theirs_in,
                stdout=theirs_out,
                stderr=theirs_out,
                **box.spawn_options(None, {"TERM": "xterm"}),  # type: ignore[arg-type]
            )
        except BaseException:
            os.close(source)
            os.close(target)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return cls(process, source, target)

    @property
    def pid(self) -> int:
        """Of the shell, or of what it became or what carries it."""
        return self._process.pid

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
            os.close(self._source)
            os.close(self._target)
            self.kill()
            with anyio.CancelScope(shield=True):
                await self._process.aclose()  # before the event loop is closed

    async def _read(self) -> bytes:
        while True:
            await anyio.wait_readable(self._source)
            try:
                return os.read(self._source, READ_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""  # nobody holds the other end any more

    async def write(self, data: bytes) -> None:
        """Type."""
        while data and not self.ended.is_set():
            try:
                data = data[os.write(self._target, data) :]
            except BlockingIOError:
                await anyio.wait_writable(self._target)
            except OSError:
                return  # nobody reads any more

    def kill(self) -> None:
        """End the shell, or the client that holds it."""
        with suppress(ProcessLookupError):
            self._process.kill()


def _as_shells_do(code: int) -> int:
    return 128 - code if code < 0 else code
