"""A worker process at the other end of two pipes."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from typing import Self

import anyio
import orjson
from anyio.abc import ByteReceiveStream, Process

from hermes_rl.errors import ToolFault
from hermes_rl.legacy.in_worker.frames import FrameError, Frames, Kind, pack
from hermes_rl.legacy.link import STOP_S, Link
from hermes_rl.legacy.settings import LegacySettings, worker_environment
from hermes_rl.types import JSONObject

__all__ = ["ProcessLink", "end_process", "open_worker", "text_of"]

TERMINATE_S = 2.0
"""From SIGTERM to SIGKILL. The worker's keeper needs it to remove what is left."""
MAX_COMPLAINT_CHARS = 600


async def open_worker(command: list[str]) -> Process:
    """Start a worker in a session of its own: Ctrl-C is the engine's to act upon."""
    return await anyio.open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=worker_environment(),
        start_new_session=True,
    )


async def text_of(stream: ByteReceiveStream | None) -> str:
    """Read a stream to its end."""
    assert stream is not None
    return b"".join([piece async for piece in stream]).decode("utf-8", "replace")


async def end_process(process: Process, *, grace_s: float) -> None:
    """Wait for a process to end, make it end if it does not, and close its pipes. Shielded."""
    with anyio.CancelScope(shield=True):
        for wait_s, number in ((grace_s, signal.SIGTERM), (TERMINATE_S, signal.SIGKILL)):
            with anyio.move_on_after(wait_s):
                await process.wait()
                break
            with suppress(ProcessLookupError):
                process.send_signal(number)
        await process.aclose()


class ProcessLink(Link):
    """See :class:`~hermes_rl.legacy.link.Link`. ``run`` must run until :meth:`stop` returns."""

    def __init__(self, process: Process, threads: int) -> None:
        super().__init__(threads)
        self._process = process
        self._is_stopping = False
        self._ended = anyio.Event()

    @classmethod
    async def start(cls, settings: LegacySettings, worker: int) -> Self:
        """Start worker number ``worker``.

        Raises:
            ConfigError: Its interpreter cannot be run.
        """
        threads = settings.threads_of(worker)
        return cls(await open_worker(settings.command("serve", threads=threads)), threads)

    async def run(self) -> None:
        """Carry answers until the worker's end of the pipe is closed, then clear it away."""
        with anyio.CancelScope(shield=True):  # Until stop(), which whoever started us calls.
            await self._carry()
            complaint = "" if self._is_stopping else await self._complaint()
            self._lost(_died(complaint))
            await end_process(self._process, grace_s=STOP_S if self._is_stopping else 0.0)
            self._ended.set()

    async def _carry(self) -> None:
        assert self._process.stdout is not None
        frames = Frames()
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, FrameError):
            async for data in self._process.stdout:
                for frame in frames.feed(data):
                    self._received(*frame)

    async def _complaint(self) -> str:
        """Return what the worker's keeper says about its end."""
        text = ""
        with anyio.move_on_after(TERMINATE_S):
            text = await text_of(self._process.stderr)
        return text.strip()[-MAX_COMPLAINT_CHARS:]

    async def _send(self, kind: Kind, id: int, message: JSONObject) -> None:
        assert self._process.stdin is not None
        # The bytes are taken before the first wait. A worker that is gone is heard of in run().
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            await self._process.stdin.send(pack(kind, id, orjson.dumps(message)))

    async def stop(self) -> None:
        """Ask the worker to stop and wait until it and all below it are gone."""
        self._is_stopping = True
        with anyio.CancelScope(shield=True):
            if not self._ended.is_set():
                await self._shielded(lambda: self._send(Kind.STOP, 0, {}))
                if self._process.stdin is not None:
                    await self._process.stdin.aclose()
                with anyio.move_on_after(STOP_S):
                    await self._ended.wait()
            if not self._ended.is_set():
                await end_process(self._process, grace_s=0.0)


def _died(complaint: str) -> ToolFault:
    error = ToolFault(
        "The worker process of hermes-agent's tools died: "
        f"{complaint or 'it was stopped'}. Its browsers and calls are lost; rollouts that come "
        "after get a new one."
    )
    error.retryable = True
    return error
