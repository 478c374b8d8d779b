"""Uploads and downloads: tar streams through the outpost, file work in worker threads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread

from hermes_rl.backends.outpost.archive import Unpacker, pack
from hermes_rl.backends.outpost.channel import OutpostChannel
from hermes_rl.backends.outpost.errno_errors import check_path, file_error
from hermes_rl.backends.outpost.frames import Kind, pack_fields, to_text
from hermes_rl.backends.outpost.process import OutpostProcess, StreamContext
from hermes_rl.backends.outpost.request import OUTPUT_WINDOW_BYTES, RunRequest
from hermes_rl.errors import FileError, SandboxError
from hermes_rl.sandbox import ExecResult

__all__ = ["download", "upload"]

STANDSTILL_S = 2.0
"""A transfer that has waited so long for its sandbox leaves its place, and queues for it anew."""
BATCH_BYTES = 1 << 20
"""Handed to a worker thread at once."""


@dataclass(slots=True, frozen=True, kw_only=True)
class TransferRequest(RunRequest):
    """A tar stream out of (PACK) or into (UNPACK) the sandbox, in the place of a command."""

    kind: Kind
    path: str

    async def send(self, channel: OutpostChannel, id: int) -> None:
        """Send the request."""
        fields: dict[str, bytes | str | int] = {"path": self.path, "window": OUTPUT_WINDOW_BYTES}
        if self.user is not None:
            fields["user"] = self.user
        await channel.send(self.kind, id, pack_fields(fields))


class _Place:
    """A place among the transfers of a backend. One that stands still leaves it to others.

    A program in the sandbox can stop what packs or unpacks there, as often and as long as it likes.

    Attributes:
        patience_s: How long the sandbox may still be waited for with the place held.
    """

    def __init__(self, places: anyio.Semaphore) -> None:
        self.patience_s = STANDSTILL_S
        self._places = places
        self._is_held = False

    async def __aenter__(self) -> Self:
        await self.take()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    async def take(self) -> None:
        """Have the place, again if it was left to others."""
        if not self._is_held:
            await self._places.acquire()
            self._is_held = True
            self.patience_s = STANDSTILL_S

    def give_back(self) -> None:
        """Leave the place to others."""
        if self._is_held:
            self._is_held = False
            self._places.release()


class _TransferProcess(OutpostProcess):
    """What packs or unpacks in the sandbox."""

    def __init__(self, channel: OutpostChannel, request: RunRequest, place: _Place) -> None:
        super().__init__(channel, request)
        self._place = place

    async def wait_for(self, change: anyio.Event) -> None:
        """Wait until the sandbox has done something; without the place if that takes too long."""
        begun_s = anyio.current_time()
        with anyio.move_on_after(self._place.patience_s):
            await change.wait()
            self._place.patience_s -= anyio.current_time() - begun_s
            return
        self._place.give_back()
        await change.wait()


def _next_batch(pieces: Iterator[bytes]) -> bytes:
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= BATCH_BYTES:
            break
    return b"".join(batch)


async def upload(
    channel: OutpostChannel,
    local: Path,
    remote: str,
    *,
    places: anyio.Semaphore,
    threads: anyio.CapacityLimiter,
    user: str | None = None,
) -> None:
    """Copy a local file, or a directory's contents, to ``remote`` as ``user``.

    Raises:
        FileError: ``local`` cannot be read or ``remote`` not written.
        SandboxError: The sandbox ended.
    """
    check_path(remote)
    request = TransferRequest(
        cmd="", output="keep", limit_bytes=4096, kind=Kind.UNPACK, path=remote, user=user
    )
    pieces = pack(local)
    async with _Place(places) as place:
        batch = await _batch_of(pieces, local, threads)
        transfer = _TransferProcess(channel, request, place)
        async with StreamContext(channel, request, process=transfer) as process:
            while batch and await process.feed(channel, batch):
                await place.take()
                batch = await _batch_of(pieces, local, threads)
            await process.write_eof()
            await process.wait_for(process.done)
            process.check()
            _check_outcome(process, remote, process.result.stderr if process.result else b"")


async def _batch_of(pieces: Iterator[bytes], local: Path, threads: anyio.CapacityLimiter) -> bytes:
    try:
        return await anyio.to_thread.run_sync(_next_batch, pieces, limiter=threads)
    except OSError as error:
        raise FileError(f"{local} cannot be uploaded: {error}.", path=str(local)) from error


async def download(
    channel: OutpostChannel,
    remote: str,
    local: Path,
    *,
    max_bytes: int,
    places: anyio.Semaphore,
    threads: anyio.CapacityLimiter,
    user: str | None = None,
) -> None:
    """Copy a file or a directory's contents out of a hostile sandbox to ``local`` as ``user``.

    Raises:
        UnsafeArchive: It held something that may not leave, or too much of it.
        FileError: ``remote`` cannot be read or ``local`` not written.
        SandboxError: The sandbox ended.
    """
    check_path(remote)
    request = TransferRequest(cmd="", output="flow", kind=Kind.PACK, path=remote, user=user)
    unpacker = Unpacker(local, max_bytes=max_bytes)
    complaint = bytearray()
    batch = bytearray()
    try:
        async with _Place(places) as place:
            transfer = _TransferProcess(channel, request, place)
            async with StreamContext(channel, request, process=transfer) as process:
                if process.failure is None:
                    async for chunk in process:
                        (batch if chunk.fd == 1 else complaint).extend(chunk.data)
                        if len(batch) >= BATCH_BYTES:
                            await place.take()
                            await _feed(unpacker, batch, local, threads)
                _check_outcome(process, remote, bytes(complaint[:4096]))
            await _feed(unpacker, batch, local, threads)
        unpacker.finish()
    finally:
        unpacker.close()


async def _feed(
    unpacker: Unpacker, batch: bytearray, local: Path, threads: anyio.CapacityLimiter
) -> None:
    data = bytes(batch)
    batch.clear()
    try:
        await anyio.to_thread.run_sync(unpacker.feed, data, limiter=threads)
    except OSError as error:
        raise FileError(f"{local} cannot be written: {error}.", path=str(local)) from error


def _check_outcome(process: OutpostProcess, remote: str, complaint: bytes) -> None:
    """Raise what went wrong inside the sandbox: refused at once, or told on stderr."""
    if process.failure is not None:
        raise file_error(remote, process.failure.number, process.failure.text)
    result: ExecResult | None = process.result
    if result is None:
        raise SandboxError(f"The transfer of {remote} did not end.")
    if result.exit_code != 0:
        number, _, told = complaint.partition(b" ")
        raise file_error(
            remote,
            int(number) if number.isdigit() else 0,
            to_text(told) or f"the transfer ended with exit code {result.exit_code}",
        )
