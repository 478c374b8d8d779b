"""Trees as tar streams on the host: packing for an upload, and unpacking what a sandbox sent.

The sandbox is hostile, so :class:`Unpacker` is a reader of its own rather than ``tarfile``: every
length is bounded before anything is read into memory, names may not leave the target, no link is
ever followed (each path is opened component by component with O_NOFOLLOW), and hard links,
devices and pipes are refused. A symbolic link is made only if it is relative and stays inside.

Both classes do blocking file work; the caller runs them in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_rl.errors import FileError, UnsafeArchive

__all__ = ["MAX_ENTRIES", "Unpacker", "pack"]

BLOCK = 512
PIECE_BYTES = 256 * 1024
MAX_ENTRIES = 200_000
"""Entries of one download; a million empty files cost the host a million inodes."""
MAX_EXTENDED_HEADER_BYTES = 64 * 1024
MAX_DEPTH = 200
MAX_PATH_BYTES = 4000
"""Of what an archive may make here. The kernel takes 4096; what is made step by step may be
longer, and then no path leads to it."""
_NO_FOLLOW_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def pack(local: Path, *, name: str | None = None) -> Iterator[bytes]:
    """Yield a tar stream of a file, or of a directory's contents, in pieces of bounded size.

    Args:
        local: What to pack; a link to a file or directory counts as what it leads to.
        name: Name of a single file in the archive; None = its own.

    Raises:
        FileError: ``local`` does not exist or holds something that is no file, directory or link.
    """
    if not local.exists():
        raise FileError(f"{local} cannot be uploaded: it does not exist.", path=str(local))
    if local.is_dir():
        yield _member(local, ".", local.stat())
        for directory, names, files in os.walk(local):
            linked = [name for name in names if os.path.islink(os.path.join(directory, name))]
            for name in sorted({*names, *files}):
                path = Path(directory, name)
                yield from _pack_one(path, str(path.relative_to(local)))
            names[:] = sorted(set(names) - set(linked))
    else:
        yield from _pack_one(local.resolve(), name or local.name)
    yield bytes(2 * BLOCK)


def _pack_one(path: Path, name: str) -> Iterator[bytes]:
    info = path.lstat()
    yield _member(path, name, info)
    if not stat.S_ISREG(info.st_mode):
        return
    left = info.st_size
    with path.open("rb") as source:
        while left:
            data = source.read(min(left, PIECE_BYTES)) or bytes(min(left, PIECE_BYTES))
            left -= len(data)
            yield data
    yield bytes(-info.st_size % BLOCK)


def _member(path: Path, name: str, info: os.stat_result) -> bytes:
    member = tarfile.TarInfo(name)
    member.mode = stat.S_IMODE(info.st_mode)
    member.mtime = int(info.st_mtime)
    if stat.S_ISREG(info.st_mode):
        member.size = info.st_size
    elif stat.S_ISDIR(info.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(info.st_mode):
        member.type = tarfile.SYMTYPE
        member.linkname = os.readlink(path)
    else:
        raise FileError(f"{path} cannot be uploaded: it is a device or pipe.", path=str(path))
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


@dataclass(slots=True, frozen=True)
class _Header:
    name: str
    kind: bytes
    size_bytes: int
    mode: int
    mtime_s: float
    link: str


class Unpacker:
    """Writes a tar stream below ``target``: a tree if it starts with ".", else one file.

    Args:
        target: The directory, or the file, to make.
        max_bytes: File contents accepted in all.
        max_entries: Members accepted.
    """

    def __init__(self, target: Path, *, max_bytes: int, max_entries: int = MAX_ENTRIES) -> None:
        self._target = target
        place = os.fsencode(os.path.abspath(target))
        self._longest_name_bytes = MAX_PATH_BYTES - len(place)
        self._bytes_left = max_bytes
        self._entries_left = max_entries
        self._buffer = bytearray()
        self._is_tree: bool | None = None
        self._extended: dict[str, str] = {}
        self._extended_kind = b""
        self._data_left = 0
        self._padding = 0
        self._file = -1
        self._header: _Header | None = None
        self._ended = False
        self._made_single = False
        self._root = -1
        self._parent: tuple[tuple[str, ...], int] = ((), -1)

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream.

        Raises:
            UnsafeArchive: Something in it may not leave the sandbox, or it is no archive.
            OSError: It cannot be stored here.
        """
        self._buffer += data
        while not self._ended and self._step():
            pass

    def finish(self) -> None:
        """Check that the archive was complete, and close.

        Raises:
            UnsafeArchive: It ended early.
        """
        self.close()
        if not self._ended:
            raise UnsafeArchive("The archive from the sandbox ends in the middle.")

    def close(self) -> None:
        """Close open files; a file that was cut short is removed. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            if self._is_tree is False:
                self._target.unlink(missing_ok=True)
        self._enter_parent(None)
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _step(self) -> bool:
        """Consume one header or piece of data; False when more input is needed."""
        if self._data_left or self._file >= 0:
            return self._take_data()
        if len(self._buffer) < BLOCK + self._padding:
            return False
        del self._buffer[: self._padding]
        self._padding = 0
        block = bytes(self._buffer[:BLOCK])
        del self._buffer[:BLOCK]
        if not any(block):
            self._ended = True
            return False
        self._begin(_parse(block))
        return True

    def _begin(self, header: _Header) -> None:
        if header.kind in (b"x", b"L", b"K"):
            if header.size_bytes > MAX_EXTENDED_HEADER_BYTES:
                raise UnsafeArchive("The archive from the sandbox has an oversized name.")
            self._extended_kind = header.kind
            self._expect(header.size_bytes)
            return
        if header.kind == b"g":
            raise UnsafeArchive("The archive from the sandbox has a global header.")
        header = _extend(header, self._extended)
        self._extended = {}
        self._entries_left -= 1
        self._bytes_left -= header.size_bytes
        if self._entries_left < 0:
            raise UnsafeArchive("The archive from the sandbox has too many entries.")
        if self._bytes_left < 0:
            raise UnsafeArchive("The archive from the sandbox holds more than was allowed.")
        self._header = header
        self._make(header)

    def _expect(self, size_bytes: int) -> None:
        self._data_left = size_bytes
        self._padding = -size_bytes % BLOCK

    def _take_data(self) -> bool:
        if self._extended_kind:
            if len(self._buffer) < self._data_left:
                return False
            data = bytes(self._buffer[: self._data_left])
            del self._buffer[: self._data_left]
            self._data_left = 0
            self._extended.update(_parse_extended(self._extended_kind, data))
            self._extended_kind = b""
            return True
        piece = self._buffer[: self._data_left]
        view = memoryview(bytes(piece))
        while view:
            view = view[os.write(self._file, view) :]
        del self._buffer[: len(piece)]
        self._data_left -= len(piece)
        if self._data_left:
            return False
        self._complete_file()
        return True

    def _complete_file(self) -> None:
        assert self._header is not None
        os.fchmod(self._file, (self._header.mode & 0o777) | 0o600)
        os.utime(self._file, (self._header.mtime_s, self._header.mtime_s))
        os.close(self._file)
        self._file = -1

    def _make(self, header: _Header) -> None:
        parts = _safe_parts(header.name)
        if len(os.fsencode(header.name)) > self._longest_name_bytes:
            raise UnsafeArchive("The archive from the sandbox has a path that is too long here.")
        if self._is_tree is None:
            self._is_tree = not parts
            self._open_root()
        if not parts:
            if header.kind != b"5":
                raise UnsafeArchive("The archive from the sandbox has a member without a name.")
            return
        if not self._is_tree:
            self._make_single(header)
            return
        *directories, name = parts
        parent = self._enter_parent(tuple(directories))
        if header.kind == b"5":
            self._make_directory(parent, name)
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        if header.kind == b"2":
            os.symlink(_safe_link(header, len(directories)), name, dir_fd=parent)
        else:
            self._open_file(header, name, parent)

    def _open_root(self) -> None:
        directory = self._target if self._is_tree else self._target.parent
        directory.mkdir(parents=True, exist_ok=True)
        self._root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _make_single(self, header: _Header) -> None:
        if header.kind not in (b"0", b"\0"):
            raise UnsafeArchive("The archive from the sandbox has a link or device for a file.")
        if self._made_single:
            raise UnsafeArchive("The archive from the sandbox has more than the one file.")
        if self._target.is_dir():
            raise FileError(f"{self._target} is a directory; name the file to make.")
        self._made_single = True
        self._target.unlink(missing_ok=True)
        self._open_file(header, self._target.name, self._root)

    def _open_file(self, header: _Header, name: str, parent: int) -> None:
        if header.kind not in (b"0", b"\0"):
            raise UnsafeArchive(
                f"The archive from the sandbox has a hard link, device or pipe: {header.name!r}."
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(name, flags, 0o600, dir_fd=parent)
        self._expect(header.size_bytes)

    def _make_directory(self, parent: int, name: str) -> None:
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            self._open_directory(parent, name)

    def _enter_parent(self, parts: tuple[str, ...] | None) -> int:
        """Return a descriptor of the directory ``parts`` below the root, made where missing."""
        known, descriptor = self._parent
        if parts is not None and known == parts and descriptor >= 0:
            return descriptor
        if descriptor >= 0:
            os.close(descriptor)
        self._parent = ((), -1)
        if parts is None:
            return -1
        current = os.dup(self._root)
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=current)
            try:
                deeper = os.open(part, _NO_FOLLOW_DIRECTORY, dir_fd=current)
            except OSError as error:
                raise UnsafeArchive(
                    f"The archive from the sandbox has a path through a link: {part!r}."
                ) from error
            finally:
                os.close(current)
            current = deeper
        self._parent = (parts, current)
        return current

    def _open_directory(self, parent: int, name: str) -> None:
        try:
            os.close(os.open(name, _NO_FOLLOW_DIRECTORY, dir_fd=parent))
        except OSError as error:
            raise UnsafeArchive(
                f"The archive from the sandbox has a directory in place of {name!r}."
            ) from error


def _number(field: bytes) -> int:
    if field[:1] in (b"\x80", b"\xff"):
        value = int.from_bytes(field[1:], "big")
        return value if field[:1] == b"\x80" else value - (1 << (8 * (len(field) - 1)))
    text = field.strip(b" \0")
    return int(text, 8) if text else 0


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _parse(block: bytes) -> _Header:
    try:
        checksum = sum(block[:148]) + 8 * 32 + sum(block[156:])
        if _number(block[148:156]) != checksum:
            raise ValueError("wrong checksum")
        name, prefix = _text(block[:100]), _text(block[345:500])
        is_ustar = block[257:262] == b"ustar" and block[263:265] == b"00"
        size_bytes = _number(block[124:136])
        kind = block[156:157]
        if size_bytes < 0:
            raise ValueError("negative size")
        if kind in (b"1", b"2", b"5") or kind in (b"3", b"4", b"6"):
            size_bytes = 0
        return _Header(
            name=f"{prefix}/{name}" if prefix and is_ustar else name,
            kind=kind,
            size_bytes=size_bytes,
            mode=_number(block[100:108]) & 0o7777,
            mtime_s=max(0, _number(block[136:148])),
            link=_text(block[157:257]),
        )
    except ValueError as error:
        raise UnsafeArchive(f"The sandbox sent no tar archive: {error}.") from None


def _parse_extended(kind: bytes, data: bytes) -> dict[str, str]:
    if kind == b"L":
        return {"path": _text(data)}
    if kind == b"K":
        return {"linkpath": _text(data)}
    records: dict[str, str] = {}
    try:
        while data:
            length_text, _, _ = data.partition(b" ")
            length = int(length_text)
            if not len(length_text) < length <= len(data):
                raise ValueError("wrong record length")
            record, data = data[len(length_text) + 1 : length - 1], data[length:]
            key, _, value = record.partition(b"=")
            records[key.decode("ascii", "replace")] = value.decode("utf-8", "surrogateescape")
    except ValueError as error:
        raise UnsafeArchive(f"The sandbox sent a malformed header: {error}.") from None
    return records


def _extend(header: _Header, records: dict[str, str]) -> _Header:
    try:
        size_bytes = int(records.get("size", header.size_bytes))
        mtime_s = max(0.0, float(records.get("mtime", header.mtime_s)))  # 1970, for older files
        if size_bytes < 0 or not mtime_s < 1 << 40:
            raise ValueError("size or time out of range")
    except ValueError as error:
        raise UnsafeArchive(f"The sandbox sent a malformed header: {error}.") from None
    return replace(
        header,
        name=records.get("path", header.name),
        link=records.get("linkpath", header.link),
        size_bytes=size_bytes,
        mtime_s=mtime_s,
    )


def _safe_parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or len(parts) > MAX_DEPTH:
        raise UnsafeArchive(f"The archive from the sandbox has an unsafe name: {name[:200]!r}.")
    return parts


def _safe_link(header: _Header, depth: int) -> str:
    """Return the target of a link that stays inside.

    ``..`` may stand only at the front: parents of a link are real directories, so these count
    true levels, whereas ``a/..`` could pass through another link.
    """
    parts = header.link.split("/")
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    if not header.link or header.link.startswith("/") or ups > depth or ".." in parts[ups:]:
        raise UnsafeArchive(
            f"The archive from the sandbox has a link that leads outside: "
            f"{header.name!r} -> {header.link[:200]!r}."
        )
    return header.link
