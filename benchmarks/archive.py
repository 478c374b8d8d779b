"""Unpacking a task's archive: a gzip-compressed tar from a data set that anyone may have written.

A reader of its own rather than ``tarfile``, so that nothing is ever larger in memory than one
piece: what is unpacked is bounded before it is read, names may not leave the target, and only
files, directories and links that stay inside are made. Anything else is refused with its name; a
half-unpacked target is the caller's to remove.
"""

from __future__ import annotations

import gzip
import io
import os
import posixpath
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from hermes_rl.errors import TaskError

__all__ = ["MAX_ENTRIES", "MAX_UNPACKED_BYTES", "unpack"]

MAX_UNPACKED_BYTES = 2 << 30
"""Headers included. What a task needs beyond this belongs into its image."""
MAX_ENTRIES = 50_000
MAX_DEPTH = 64
MAX_EXTENDED_BYTES = 64 << 10
"""Of one extended header: a long name."""
_PIECE_BYTES = 256 << 10
_FILES = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE)
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
}


def unpack(data: bytes, target: Path, *, max_bytes: int = MAX_UNPACKED_BYTES) -> None:
    """Unpack into ``target``, which is made if need be and should be empty. Blocks.

    Args:
        data: The gzip-compressed tar.
        target: Directory.
        max_bytes: Of everything unpacked.

    Raises:
        TaskError: It is no such archive, too large, or holds something that may not be unpacked;
            says what.
        OSError: The target cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
        unpacker = _Unpacker(_Stream(stream, max_bytes), target)
        try:
            unpacker.run()
        except (gzip.BadGzipFile, zlib.error, EOFError, tarfile.TarError) as error:
            raise TaskError(f"it is no gzip-compressed tar archive ({error})") from None


class _Stream:
    """Reads exact amounts, up to a total."""

    def __init__(self, stream: gzip.GzipFile, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._left = max_bytes

    def reserve(self, size: int) -> None:
        """Refuse an entry that cannot fit, before any of it is read."""
        if not 0 <= size <= self._left:
            raise TaskError(f"it unpacks to more than {self._max_bytes:,} bytes")

    def exactly(self, size: int) -> bytes:
        """Return ``size`` bytes, at most a piece."""
        self.reserve(size)
        self._left -= size
        parts: list[bytes] = []
        while size:
            part = self._stream.read(size)
            if not part:
                raise EOFError("it ends too soon")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def block(self) -> bytes:
        """Return the next block, b"" at the end."""
        first = self._stream.read(1)
        if not first:
            return b""
        self._left -= 1
        return first + self.exactly(tarfile.BLOCKSIZE - 1)

    def drain(self) -> None:
        """Read what follows the end mark, so that the checksum of it all is checked."""
        while piece := self._stream.read(_PIECE_BYTES):
            self.reserve(len(piece))
            self._left -= len(piece)

    def pieces(self, size: int) -> Iterator[bytes]:
        """Yield ``size`` bytes and swallow the padding behind them."""
        padding = -size % tarfile.BLOCKSIZE
        while size:
            piece = self.exactly(min(size, _PIECE_BYTES))
            size -= len(piece)
            yield piece
        self.exactly(padding)


class _Unpacker:
    """Unpacks one archive. Links are made last, so nothing is ever written through one."""

    def __init__(self, stream: _Stream, target: Path) -> None:
        self._stream = stream
        self._target = target
        self._extended: dict[str, str] = {}
        self._links: dict[str, str] = {}
        self._entries = 0

    def run(self) -> None:
        while (header := self._next()) is not None:
            self._take(header)
        self._stream.drain()
        for name, leads_to in self._links.items():
            path = self._target / name
            if path.exists() or path.is_symlink():
                raise TaskError(f"{name!r} is in it as a link and as something else")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(leads_to)

    def _next(self) -> tarfile.TarInfo | None:
        block = self._stream.block()
        if not block and not self._entries:
            raise EOFError("it is empty")
        if not any(block):
            return None
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")

    def _take(self, header: tarfile.TarInfo) -> None:
        if header.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            self._extended |= _records(self._small(header))
        elif header.type == tarfile.XGLTYPE:
            self._small(header)
        elif header.type == tarfile.GNUTYPE_LONGNAME:
            self._extended["path"] = _text(self._small(header))
        elif header.type == tarfile.GNUTYPE_LONGLINK:
            self._extended["linkpath"] = _text(self._small(header))
        else:
            self._make(header, self._extended)
            self._extended = {}

    def _small(self, header: tarfile.TarInfo) -> bytes:
        if not 0 <= header.size <= MAX_EXTENDED_BYTES:
            raise TaskError(f"it has an extended header of {header.size:,} bytes")
        return b"".join(self._stream.pieces(header.size))

    def _make(self, header: tarfile.TarInfo, extended: dict[str, str]) -> None:
        self._entries += 1
        if self._entries > MAX_ENTRIES:
            raise TaskError(f"it has more than {MAX_ENTRIES:,} entries")
        name = self._safe_name(extended.get("path", header.name))
        if any(key.startswith("GNU.sparse") for key in extended):
            raise TaskError(f"{name!r} is {_KINDS[tarfile.GNUTYPE_SPARSE]}")
        path = self._target / name
        if header.type == tarfile.DIRTYPE:
            path.mkdir(parents=True, exist_ok=True)
        elif header.type == tarfile.SYMTYPE:
            self._links[name] = _safe_link(name, extended.get("linkpath", header.linkname))
        elif header.type in _FILES:
            self._make_file(path, header, int(extended.get("size", header.size)))
        else:
            raise TaskError(f"{name!r} is {_KINDS.get(header.type, 'of an unknown kind')}")

    def _make_file(self, path: Path, header: tarfile.TarInfo, size: int) -> None:
        self._stream.reserve(size)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        mode = 0o755 if header.mode & stat.S_IXUSR else 0o644
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(self._stream.pieces(size))

    def _safe_name(self, name: str) -> str:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name or len(parts) > MAX_DEPTH:
            raise TaskError(f"{name[:200]!r} leads out of it")
        clean = "/".join(parts)
        above = ["/".join(parts[:count]) for count in range(1, len(parts))]
        if any(parent in self._links for parent in above):
            raise TaskError(f"{clean[:200]!r} is below a link")
        return clean


def _safe_link(name: str, leads_to: str) -> str:
    inside = posixpath.normpath(posixpath.join(posixpath.dirname(name), leads_to))
    # After a name, ".." could lead back from wherever that name is a link to.
    climbs_late = ".." in leads_to.lstrip("./").split("/")
    if leads_to.startswith("/") or inside.startswith("..") or climbs_late or not leads_to:
        raise TaskError(f"{name!r} is a link to {leads_to[:200]!r}, which is outside")
    return leads_to


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _records(data: bytes) -> dict[str, str]:
    """Read the records of an extended header: length, space, key, ``=``, value, newline."""
    found: dict[str, str] = {}
    while data:
        length_text, _, _ = data.partition(b" ")
        if not length_text.isdigit() or not len(length_text) < int(length_text) <= len(data):
            raise tarfile.ReadError("malformed extended header")
        length = int(length_text)
        key, equals, value = data[len(length_text) + 1 : length - 1].partition(b"=")
        if not equals:
            raise tarfile.ReadError("malformed extended header")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        data = data[length:]
    if not found.get("size", "0").isdigit():
        raise tarfile.ReadError("malformed size")
    return found
