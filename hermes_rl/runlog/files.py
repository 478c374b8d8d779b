"""The files of a run directory: names, the lock, writes that are whole or not there at all.

Everything here blocks and is called in the run log's own writer thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from hermes_rl.errors import RunLogError

__all__ = [
    "CONFIG",
    "METRICS",
    "RESULTS",
    "SAMPLES",
    "AppendFile",
    "RunLock",
    "artifacts_name",
    "remove_run",
    "transcript_name",
    "write_whole",
]

CONFIG = "config.json"
METRICS = "metrics.json"
RESULTS = "results.jsonl"
SAMPLES = "samples.jsonl"
_LOCK = ".lock"
MAX_NAME_CHARS = 120
"""Longer task ids are cut and get a hash, well below the 255 bytes of file systems."""


def transcript_name(task_id: str, attempt: int) -> str:
    """Return a transcript's path relative to the run directory; safe for any task id."""
    return f"transcripts/{_safe(task_id)}/{attempt}.jsonl"


def artifacts_name(task_id: str, attempt: int) -> str:
    """Return the path of a rollout's own files relative to the run directory."""
    return f"artifacts/{_safe(task_id)}/{attempt}"


def _safe(task_id: str) -> str:
    name = quote(task_id, safe=" +=@,")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > MAX_NAME_CHARS:
        name = f"{name[:MAX_NAME_CHARS]}-{hashlib.sha256(task_id.encode()).hexdigest()[:12]}"
    return name


def fault(path: Path, error: OSError, doing: str = "written") -> RunLogError:
    """Return the error that says what the operating system refused and what to do."""
    return RunLogError(
        f"{path} cannot be {doing}: {error.strerror or error}. What was finished before is kept; "
        "mend the cause and continue with --resume."
    )


def write_whole(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file so that readers see the old content or all of the new one.

    Raises:
        RunLogError: The file cannot be written; no part of it is left behind.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft.open("wb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise fault(path, error) from error


def remove_run(directory: Path) -> None:
    """Remove the files of a run without rollouts, and the directory if nothing else is in it."""
    with contextlib.suppress(OSError):
        for name in (SAMPLES, METRICS, CONFIG, RESULTS, _LOCK):
            (directory / name).unlink(missing_ok=True)
        directory.rmdir()


def _sync_folder(folder: Path) -> None:
    """Make a rename or a new file itself durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AppendFile:
    """A file of lines that only grows; each line is on disk before :meth:`append` returns."""

    def __init__(self, path: Path) -> None:
        """Open or create ``path``; a torn last line of an earlier process is cut off."""
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                self._size_bytes = self._cut_torn_line()
                _sync_folder(path.parent)
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise fault(path, error) from error

    def _cut_torn_line(self) -> int:
        """Return the length of the whole lines, having cut what follows them."""
        end = os.fstat(self._descriptor).st_size
        step = 1 << 16
        position = end
        while position > 0:
            start = max(0, position - step)
            newline = os.pread(self._descriptor, position - start, start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position < end:
            os.ftruncate(self._descriptor, position)
        return position

    def append(self, line: bytes) -> None:
        """Write one line and wait until it is on disk.

        Raises:
            RunLogError: It cannot be written; nothing of it is left in the file.
        """
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fdatasync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._size_bytes)
            raise fault(self._path, error) from error
        self._size_bytes += len(line)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class RunLock:
    """Keeps a second process from writing the same run directory. Dies with its process."""

    def __init__(self, directory: Path) -> None:
        """Take the lock; the directory is made if it is missing.

        Raises:
            RunLogError: Another process holds it, or the directory cannot be written.
        """
        path = directory / _LOCK
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise fault(path, error) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            owner = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            if isinstance(error, BlockingIOError):
                raise RunLogError(
                    f"{directory} is being written by another process (pid {owner or 'unknown'}). "
                    "Wait for it, or choose another run directory."
                ) from error
            raise fault(path, error) from error

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        """Return the lock, held."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Release."""
        self.release()
