"""Large uploads through the container engine, which unpacks them itself.

Ten times faster than through the outpost for 100 MB. Not possible everywhere: the engine writes
as root, and into the file system *under* a mount, where nobody would see it. So where the upload
leads is asked first, inside the sandbox; whatever is not plain goes through the outpost instead.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import EngineFailure
from hermes_rl.backends.outpost.archive import pack
from hermes_rl.errors import FileError, HermesRLError

__all__ = ["LARGE_BYTES", "Place", "put", "size_of"]

LARGE_BYTES = 2 << 20
"""From here on the detour pays."""
BATCH_BYTES = 1 << 20
T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Place:
    """Where an upload goes, as ``place.py`` says inside the sandbox.

    Attributes:
        directory: Existing directory to unpack in.
        name: Name of the file in it; None for a directory's contents.
    """

    directory: str
    name: str | None

    @classmethod
    def parse(cls, output: bytes, *, is_directory: bool) -> Place | None:
        """Read the program's output; None if the engine cannot put anything there."""
        fields = output.split(b"\0")
        if len(fields) != 4 or fields[0] != b"1":
            return None
        if fields[1] not in ((b"none", b"directory") if is_directory else (b"none", b"file")):
            return None
        name = None if is_directory else os.fsdecode(fields[3])
        return cls(os.fsdecode(fields[2]), name)


async def put(
    engine: DockerEngine,
    container: str,
    local: Path,
    place: Place,
    *,
    threads: anyio.CapacityLimiter,
) -> None:
    """Send ``local`` to ``place``.

    Raises:
        FileError: ``local`` cannot be read.
        EngineFailure: The engine refused.
    """
    source = _Source(pack(local, name=place.name), local, threads)
    try:
        await engine.put_archive(container, place.directory, source.chunks())
    except EngineFailure:
        # What failed while the body was being made shows up as a broken connection.
        if source.error is not None:
            raise source.error from None
        raise


class _Source:
    """A blocking generator as the body of a request, and what went wrong in it."""

    def __init__(
        self, pieces: Iterator[bytes], local: Path, threads: anyio.CapacityLimiter
    ) -> None:
        self.error: HermesRLError | None = None
        self._pieces = pieces
        self._local = local
        self._threads = threads

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while batch := await _in_thread(self._threads, _batch, self._pieces):
                yield batch
        except OSError as error:
            self.error = FileError(
                f"{self._local} cannot be uploaded: {error}.", path=str(self._local)
            )
            raise
        except HermesRLError as error:
            self.error = error
            raise


async def size_of(local: Path, *, threads: anyio.CapacityLimiter) -> int:
    """Return the bytes of a file or of all files below a directory; 0 if it cannot be read."""
    return await _in_thread(threads, _size, local)


async def _in_thread(threads: anyio.CapacityLimiter, work: Callable[..., T], *args: Any) -> T:
    return await anyio.to_thread.run_sync(work, *args, limiter=threads)


def _size(local: Path) -> int:
    try:
        if not local.is_dir():
            return local.stat().st_size
        files = (Path(top, name) for top, _, names in os.walk(local) for name in names)
        return sum(file.lstat().st_size for file in files)
    except OSError:
        return 0


def _batch(pieces: Iterator[bytes]) -> bytes:
    batch: list[bytes] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= BATCH_BYTES:
            break
    return b"".join(batch)
