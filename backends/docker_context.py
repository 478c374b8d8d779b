"""A build context: which files of a directory belong to it, their digest, and their tar stream.

The engine's API takes what it is sent, so ``.dockerignore`` is applied here. Its patterns are
those of Docker's documentation: ``*``, ``?``, ``**``, ``[a-z]``, ``!`` for exceptions, ``#`` for
comments; the last matching line wins, and a pattern that matches a directory covers all in it.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hermes_rl.errors import ImageBuildFailed

__all__ = ["BuildContext"]

_CHUNK_BYTES = 1 << 20
_IGNORE_FILE = ".dockerignore"
_DOCKERFILE = "Dockerfile"


@dataclass(slots=True, frozen=True)
class BuildContext:
    """The files of one build. All methods block: call them in a thread.

    Attributes:
        root: The directory.
        names: Paths below it, sorted; directories before what is in them.
    """

    root: Path
    names: tuple[str, ...]

    @classmethod
    def scan(cls, root: Path) -> Self:
        """List what belongs to the context.

        Raises:
            ImageBuildFailed: There is no Dockerfile.
        """
        if not (root / _DOCKERFILE).is_file():
            raise ImageBuildFailed(f"{root} holds no Dockerfile.", backend="docker")
        rules = _rules(root / _IGNORE_FILE)
        kept = (name for name in _walk(root) if not _is_ignored(name, rules))
        return cls(root, tuple(sorted(kept)))

    def fingerprint(self) -> str:
        """Digest of names, sizes and times: as long as it is the same, so is :meth:`digest`."""
        digest = hashlib.sha256()
        for name in self.names:
            info = (self.root / name).lstat()
            line = f"{name}\0{info.st_mode}\0{info.st_size}\0{info.st_mtime_ns}\0{info.st_ino}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def digest(self) -> str:
        """Digest of names, permissions and contents; times and owners do not count."""
        digest = hashlib.sha256()
        for name in self.names:
            path = self.root / name
            info = path.lstat()
            if stat.S_ISLNK(info.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(info.st_mode):
                with path.open("rb") as stream:
                    content = hashlib.file_digest(stream, "sha256").hexdigest()
            else:
                content = ""
            line = f"{name}\0{info.st_mode:o}\0{content}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def tar(self) -> Iterator[bytes]:
        """Yield the context as a tar stream in pieces of at most 1 MiB."""
        for name in self.names:
            path = self.root / name
            info = path.lstat()
            yield _header(name, path, info)
            if stat.S_ISREG(info.st_mode):
                yield from _body(path, info.st_size)
        yield bytes(2 * tarfile.BLOCKSIZE)


def _walk(root: Path) -> Iterator[str]:
    for directory, subdirectories, names in os.walk(root):
        for name in [*subdirectories, *names]:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode) or stat.S_ISLNK(mode):
                yield os.path.relpath(path, root)


def _header(name: str, path: Path, info: os.stat_result) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.mode = stat.S_IMODE(info.st_mode)
    entry.mtime = int(info.st_mtime)
    if stat.S_ISLNK(info.st_mode):
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif stat.S_ISDIR(info.st_mode):
        entry.type = tarfile.DIRTYPE
    else:
        entry.size = info.st_size
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _body(path: Path, size: int) -> Iterator[bytes]:
    """Yield exactly ``size`` bytes and their padding, whatever happens to the file meanwhile."""
    left = size
    with path.open("rb") as stream:
        while left and (data := stream.read(min(left, _CHUNK_BYTES))):
            left -= len(data)
            yield data
    if left:
        raise ImageBuildFailed(
            f"{path} changed while it was sent to the builder.", backend="docker"
        )
    yield bytes(-size % tarfile.BLOCKSIZE)


@dataclass(slots=True, frozen=True)
class _Rule:
    pattern: re.Pattern[str]
    ignores: bool


def _rules(path: Path) -> list[_Rule]:
    try:
        lines = path.read_text(errors="surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    texts = [line.strip() for line in lines if not line.startswith("#")]
    return [_rule(text) for text in texts if text.strip("!/ ")]


def _rule(text: str) -> _Rule:
    ignores = not text.startswith("!")
    text = os.path.normpath(text.removeprefix("!").strip()).lstrip("/")
    return _Rule(re.compile(_regex(text) + r"(/.*)?", re.DOTALL), ignores)


def _regex(text: str) -> str:
    """Translate a pattern; ``*`` and ``?`` stop at a slash, ``**`` does not."""
    parts = re.findall(r"\*\*/?|\*|\?|\[\^?[^]]+\]|\\.|.", text, re.DOTALL)
    return "".join(map(_regex_part, parts))


def _regex_part(part: str) -> str:
    if part.startswith("**"):
        return "(.*/)?" if part.endswith("/") else ".*"
    if part == "*":
        return "[^/]*"
    if part == "?":
        return "[^/]"
    if part.startswith("[") and part.endswith("]"):
        return part
    return re.escape(part[-1])


def _is_ignored(name: str, rules: list[_Rule]) -> bool:
    if name in (_DOCKERFILE, _IGNORE_FILE):
        return False
    ignored = False
    for rule in rules:
        if rule.pattern.fullmatch(name):
            ignored = rule.ignores
    return ignored
