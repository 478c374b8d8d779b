"""Where local sandboxes live on disk, and how those of dead engines are found.

Each backend instance has one directory below ``hermes_rl-<uid>`` in the temporary directory and
holds a file lock in it. The kernel drops the lock with the process, however it died and in
whatever pid namespace, so a directory whose lock can be taken belongs to nobody.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hermes_rl.backends.outpost.leftovers import remove_locked, remove_tree
from hermes_rl.backends.outpost.sandbox_lock import LOCK_NAME, is_abandoned, take_lock
from hermes_rl.backends.ownership import Owner
from hermes_rl.errors import BackendUnavailable
from hermes_rl.sandbox import SandboxRecord

__all__ = [
    "BackendDirectory",
    "SandboxDirectory",
    "abandoned",
    "list_records",
    "remove_locked",
    "remove_tree",
    "sweep",
]


def _base() -> Path:
    """Return the parent of all instances' directories, private to this user.

    Raises:
        BackendUnavailable: It cannot be made, or someone else owns it.
    """
    with _needing_tmpdir():
        base = Path(tempfile.gettempdir(), f"hermes_rl-{os.getuid()}")
        with suppress(FileExistsError):
            base.mkdir(mode=0o700)
        info = base.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid():
        raise BackendUnavailable(
            f"{base} is not a directory of yours. Remove it, or set TMPDIR to another place.",
            backend="local",
        )
    return base


@contextmanager
def _needing_tmpdir() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BackendUnavailable(
            f"The local backend needs a writable temporary directory (TMPDIR): {error}.",
            backend="local",
        ) from error


@dataclass(slots=True, frozen=True)
class SandboxDirectory:
    """The directories of one sandbox: its home and working directory, TMPDIR, session state."""

    top: Path

    def make(self) -> None:
        """Make them. Blocking."""
        for path in (self.home, self.tmp, self.state):
            path.mkdir(parents=True)

    @property
    def home(self) -> Path:
        """HOME and working directory."""
        return self.top / "home"

    @property
    def tmp(self) -> Path:
        """TMPDIR."""
        return self.top / "tmp"

    @property
    def state(self) -> Path:
        """Session state of the outpost."""
        return self.top / "state"


class BackendDirectory:
    """One backend instance's directory, locked while the process lives."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def make(cls, run_id: str) -> Self:
        """Make and lock a fresh directory. Blocking.

        Raises:
            BackendUnavailable: The temporary directory cannot be used.
        """
        base = _base()
        with _needing_tmpdir(), ExitStack() as undo:
            path = Path(tempfile.mkdtemp(dir=base, prefix=""))
            undo.callback(remove_tree, path)
            record = f"{run_id}\n{Owner.current()}\n".encode()
            lock = take_lock(str(path), lambda lock: os.write(lock, record))
            undo.pop_all()
        return cls(path, lock)

    @property
    def log(self) -> Path:
        """Where the helper processes complain."""
        return self.path / "helper.log"

    def sandbox(self, name: str) -> SandboxDirectory:
        """Return the directories of one sandbox, which are not made yet."""
        return SandboxDirectory(self.path / name)

    def remove(self) -> None:
        """Remove everything and let go of the lock. Blocking."""
        remove_tree(self.path)
        os.close(self._lock)


def sweep() -> list[str]:
    """Remove the directories of instances that live no more; return their paths. Blocking."""
    return [str(path) for path in abandoned() if remove_locked(str(path))]


def abandoned() -> list[Path]:
    """List the directories of instances that live no more. Blocking."""
    directories = [path for path in _base().iterdir() if path.is_dir() and not path.is_symlink()]
    return [path for path in directories if is_abandoned(str(path))]


def list_records() -> list[SandboxRecord]:
    """List the sandboxes of all instances on this machine. Blocking."""
    records: list[SandboxRecord] = []
    for path in _base().iterdir():
        if path.is_dir() and not path.is_symlink():
            with suppress(FileNotFoundError):  # its engine has ended meanwhile
                records += _records_in(path)
    return records


def _records_in(path: Path) -> list[SandboxRecord]:
    abandoned = is_abandoned(str(path))
    try:
        run, owner = (path / LOCK_NAME).read_text().splitlines()
    except (OSError, ValueError):
        run, owner = "", ""
    return [
        SandboxRecord(
            id=sandbox.name,
            image="",
            state="abandoned" if abandoned else "running",
            run=run,
            owner=owner,
            deadline_s=None,
            verdict="owner dead" if abandoned else "keep",
        )
        for sandbox in path.iterdir()
        if sandbox.is_dir()
    ]
