"""The engine's end of a helper process of the local backend; see ``outpost/nursery.py``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread
import orjson

from hermes_rl.backends.log_tail import log_tail
from hermes_rl.errors import BackendUnavailable, CreateError

__all__ = ["NurseryClient"]

MESSAGE_BYTES = 256 * 1024
MAX_MESSAGE_BYTES = 128 * 1024
"""What certainly fits into one message of the socket."""
END_LIMIT_S = 10.0
"""Longest wait for a helper to end after its keepers."""
LOG_TAIL_BYTES = 500


class NurseryClient:
    """One helper process: starts keepers in it and hears of their ends.

    ``run`` must be running in the backend's task group from the start until :meth:`aclose`.
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        log: Path,
        threads: anyio.CapacityLimiter,
        backend: str = "local",
    ) -> None:
        self.lost = anyio.Event()
        """Set when the helper's end of the socket is closed: its sandboxes are gone."""
        self.keepers: dict[str, anyio.Event] = {}
        self.statuses: dict[str, int] = {}
        self.refusals: dict[str, OSError] = {}
        """Why a keeper could not be started."""
        self._process = process
        self._control = control
        self._log = log
        self._threads = threads
        self._backend = backend
        self._sending = anyio.Lock()

    @classmethod
    async def start(
        cls, log: Path, *, threads: anyio.CapacityLimiter, backend: str = "local"
    ) -> Self:
        """Start a helper; its complaints go to ``log``, errors name the ``backend``.

        Raises:
            BackendUnavailable: No process can be started.
        """
        try:
            process, control = await anyio.to_thread.run_sync(_popen, log, limiter=threads)
        except OSError as error:
            raise BackendUnavailable(
                f"The {backend} backend cannot start its helper process: {error}.", backend=backend
            ) from error
        return cls(process, control, log, threads, backend)

    async def run(self) -> None:
        """Hear of ended keepers until the helper is gone. Never raises."""
        with anyio.CancelScope(shield=True):
            while data := await self._receive():
                message = orjson.loads(data)
                ended = self.keepers.pop(message["id"], None)
                if ended is not None:
                    self._note_end(message)
                    ended.set()
            self.lost.set()
            for ended in self.keepers.values():
                ended.set()

    def _note_end(self, message: Mapping[str, Any]) -> None:
        if "error" in message:
            self.refusals[message["id"]] = OSError(*message["error"])
        else:
            self.statuses[message["id"]] = message["status"]

    async def _receive(self) -> bytes:
        while True:
            try:
                await anyio.wait_readable(self._control)
                return self._control.recv(MESSAGE_BYTES)
            except BlockingIOError:
                continue
            except (OSError, anyio.ClosedResourceError):
                return b""

    async def adopt(self, id: str, message: Mapping[str, Any], stream: socket.socket) -> None:
        """Start a keeper whose stream is the other end of ``stream``; closes that socket.

        Raises:
            BackendUnavailable: The helper is gone.
            CreateError: The environment is too large for a message.
        """
        data = orjson.dumps({"op": "start", "id": id, **message})
        if len(data) > MAX_MESSAGE_BYTES:
            raise CreateError(
                f"The sandbox's environment has {len(data)} bytes; the {self._backend} backend "
                f"takes {MAX_MESSAGE_BYTES}.",
                backend=self._backend,
            )
        self.keepers[id] = anyio.Event()
        try:
            await self._send(data, [stream.fileno()])
        except BackendUnavailable:
            del self.keepers[id]
            raise

    async def kill(self, id: str) -> None:
        """Kill a keeper that does not end by itself, and all that it kept."""
        if not self.lost.is_set():
            await self._send(orjson.dumps({"op": "kill", "id": id}), [])

    async def _send(self, data: bytes, fds: list[int]) -> None:
        async with self._sending:
            while True:
                try:
                    socket.send_fds(self._control, [data], fds)
                    return
                except BlockingIOError:
                    await anyio.wait_writable(self._control)
                except OSError as error:
                    raise BackendUnavailable(
                        f"The {self._backend} backend's helper process is gone: {self.complaint()}",
                        backend=self._backend,
                    ) from error

    def complaint(self) -> str:
        """Return the end of what the helper wrote before it died."""
        try:
            text = log_tail(self._log, LOG_TAIL_BYTES).decode("utf-8", "replace").strip()
        except OSError:
            text = ""
        return text or f"exit code {self._process.poll()}"

    def has_ended(self, id: str) -> bool:
        """Tell whether nothing of a sandbox is left, or nobody is there to remove it."""
        return id not in self.keepers or self.lost.is_set()

    async def wait_ended(self, id: str) -> None:
        """Wait until nothing of a sandbox is left, or the helper itself is gone."""
        ended = self.keepers.get(id)
        if ended is not None:
            await ended.wait()

    async def aclose(self) -> None:
        """Let the helper end, kill it if it does not, and wait for it."""
        with anyio.CancelScope(shield=True):
            if not self.lost.is_set():
                self._control.shutdown(socket.SHUT_WR)
                with anyio.move_on_after(END_LIMIT_S):
                    await self.lost.wait()
            self._process.kill()
            await anyio.to_thread.run_sync(self._process.wait, limiter=self._threads)
            if not self.lost.is_set():
                anyio.notify_closing(self._control)
            self._control.close()


def _popen(log: Path) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the helper and return our end of its socket with it."""
    program = str(files("hermes_rl.backends.outpost").joinpath("nursery.py"))
    kept = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    try:
        with theirs, log.open("ab") as complaints:
            process = subprocess.Popen(
                [sys.executable, "-IS", program],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env={name: os.environ[name] for name in kept if name in os.environ},
                cwd="/",
                start_new_session=True,
            )
    except BaseException:
        ours.close()
        raise
    return process, ours
