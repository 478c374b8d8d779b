"""Files out of a container through the engine: what it says a path is, and its tar stream."""

from __future__ import annotations

import base64
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Self

import orjson

__all__ = ["ArchiveStat", "first_file", "window"]

_GO_MODE_DIR = 1 << 31
_GO_MODE_SYMLINK = 1 << 27
_GO_MODE_TYPE = _GO_MODE_DIR | _GO_MODE_SYMLINK | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19
"""Bits of Go's ``fs.FileMode`` that make a file anything but a regular one."""


@dataclass(slots=True, frozen=True)
class ArchiveStat:
    """What a path in a container is, as the engine sees it; a link is not followed."""

    size_bytes: int
    is_regular: bool
    is_directory: bool
    is_link: bool

    @classmethod
    def parse(cls, header: str) -> Self:
        """Read the header ``X-Docker-Container-Path-Stat``."""
        stat = orjson.loads(base64.b64decode(header))
        mode = stat["mode"]
        return cls(
            size_bytes=stat["size"],
            is_regular=not mode & _GO_MODE_TYPE,
            is_directory=bool(mode & _GO_MODE_DIR),
            is_link=bool(mode & _GO_MODE_SYMLINK),
        )


async def first_file(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the contents of the first regular file of a tar stream, piece by piece.

    Raises:
        ValueError: The stream is no tar, or ends too soon.
    """
    reader = _Reader(chunks)
    while True:
        block = await reader.exactly(tarfile.BLOCKSIZE)
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise ValueError(f"not a tar archive: {error}") from error
        if header.type in tarfile.REGULAR_TYPES:
            break
        padded = -(-header.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        await reader.exactly(padded)
    left = header.size
    while left:
        data = await reader.some(left)
        left -= len(data)
        yield data


async def window(pieces: AsyncIterator[bytes], *, offset: int, max_bytes: int) -> bytes | None:
    """Return what follows ``offset``; None if that is more than ``max_bytes``.

    Holds no more than that, whatever the file became since its size was told.
    """
    kept = bytearray()
    async for piece in pieces:
        skipped = min(offset, len(piece))
        offset -= skipped
        kept += piece[skipped:]
        if len(kept) > max_bytes:
            return None
    return bytes(kept)


class _Reader:
    """Reads exact amounts from a stream that comes in arbitrary pieces."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._pending = b""

    async def some(self, limit: int) -> bytes:
        """Return between 1 and ``limit`` bytes."""
        while not self._pending:
            try:
                self._pending = await anext(self._chunks)
            except StopAsyncIteration:
                raise ValueError("the archive ends too soon") from None
        data, self._pending = self._pending[:limit], self._pending[limit:]
        return data

    async def exactly(self, size: int) -> bytes:
        """Return ``size`` bytes."""
        parts: list[bytes] = []
        while size:
            parts.append(await self.some(size))
            size -= len(parts[-1])
        return b"".join(parts)
