"""Files of a sandbox, read, written and listed by its outpost."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from typing import Literal

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from hermes_rl.backends.outpost.channel import OutpostChannel
from hermes_rl.backends.outpost.errno_errors import check_path, file_error
from hermes_rl.backends.outpost.frames import (
    FrameError,
    Kind,
    iterate_list,
    pack_fields,
    to_text,
)
from hermes_rl.sandbox import DirEntry

__all__ = ["list_directory", "read_file", "write_file"]

WRITE_INLINE_BYTES = 512 * 1024
JOIN_HERE_BYTES = 4 << 20
"""Joining more than this on the event loop would hold it for milliseconds."""
LIST_LIMIT_BYTES = 10_000 * 512
MAX_LIST_ENTRIES = 10_000
ENTRIES_PER_TURN = 500
"""Read before other tasks get the loop: about 2 ms."""

_KINDS: dict[bytes, Literal["file", "dir", "link", "other"]] = {
    b"file": "file",
    b"dir": "dir",
    b"link": "link",
    b"other": "other",
}


async def _ask(
    channel: OutpostChannel,
    kind: Kind,
    path: str,
    fields: Mapping[str, bytes | str | int],
    *,
    user: str | None,
    sandbox_id: str,
    limit_bytes: int = 0,
    data: bytes = b"",
) -> list[bytes]:
    """Return the pieces of the answer."""
    check_path(path, sandbox_id=sandbox_id)
    who: dict[str, bytes | str | int] = {} if user is None else {"user": user}
    payload = pack_fields({"path": path, **who, **fields})
    reply = await channel.ask(kind, payload, limit_bytes=limit_bytes, data=data)
    if reply.failure is not None:
        number = reply.failure.number
        if kind == Kind.LIST and number == errno.ENOTDIR:
            number = errno.EISDIR
        raise file_error(path, number, reply.failure.text, sandbox_id=sandbox_id)
    return reply.chunks


async def read_file(
    channel: OutpostChannel,
    path: str,
    *,
    max_bytes: int,
    offset: int,
    user: str | None,
    sandbox_id: str,
    threads: anyio.CapacityLimiter,
) -> bytes:
    """Read a file; see :meth:`hermes_rl.sandbox.Sandbox.read`.

    Raises:
        FileError: It cannot be read, or holds more.
    """
    fields = {"offset": offset, "limit": max_bytes}
    chunks = await _ask(
        channel,
        Kind.READ,
        path,
        fields,
        user=user,
        sandbox_id=sandbox_id,
        limit_bytes=max_bytes,
    )
    if sum(map(len, chunks)) < JOIN_HERE_BYTES:
        return b"".join(chunks)
    return await anyio.to_thread.run_sync(b"".join, chunks, limiter=threads)


async def write_file(
    channel: OutpostChannel,
    path: str,
    data: bytes,
    *,
    mode: int | None,
    user: str | None,
    sandbox_id: str,
) -> None:
    """Write a file atomically; see :meth:`hermes_rl.sandbox.Sandbox.write`.

    Raises:
        FileError: It cannot be written.
    """
    fields: dict[str, bytes | str | int] = {} if mode is None else {"mode": mode}
    is_small = len(data) <= WRITE_INLINE_BYTES
    fields |= {"data": data} if is_small else {"more": 1}
    rest = b"" if is_small else data
    await _ask(channel, Kind.WRITE, path, fields, user=user, sandbox_id=sandbox_id, data=rest)


async def list_directory(
    channel: OutpostChannel, path: str, *, user: str | None, sandbox_id: str
) -> list[DirEntry]:
    """List a directory; see :meth:`hermes_rl.sandbox.Sandbox.list`.

    Raises:
        FileError: It cannot be listed.
    """
    chunks = await _ask(
        channel,
        Kind.LIST,
        path,
        {},
        user=user,
        sandbox_id=sandbox_id,
        limit_bytes=LIST_LIMIT_BYTES,
    )
    entries: list[DirEntry] = []
    try:
        for entry in _dir_entries(b"".join(chunks)):
            entries.append(entry)
            if len(entries) % ENTRIES_PER_TURN == 0:
                await checkpoint()
    except FrameError as error:
        await channel.refuse(error)
    return entries


def _dir_entries(data: bytes) -> Iterator[DirEntry]:
    """Read a list of entries, each of five items.

    Raises:
        FrameError: It is none, or longer than one may be.
    """
    items = iterate_list(data)
    for count, name in enumerate(items):
        if count >= MAX_LIST_ENTRIES:
            raise FrameError("more directory entries than were asked for")
        try:
            kind, size = _KINDS[next(items)], int(next(items))
            mtime_ns, mode = int(next(items)), int(next(items))
            entry = DirEntry(to_text(name), kind, size, mtime_ns / 1e9, mode)
        except (ArithmeticError, KeyError, StopIteration, ValueError) as error:
            raise FrameError(f"a malformed directory entry ({error!r})") from None
        if not 0 <= size < 1 << 63:
            raise FrameError("a file of impossible size")
        yield entry
