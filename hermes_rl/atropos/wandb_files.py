"""The temporary directories that wandb makes when it is imported, which atroposlib always does.

wandb removes them when the interpreter ends, but not when the process is killed. So they are put
into a directory of ours, locked while the process lives: the kernel drops the lock with the
process, and the next one removes what nobody holds.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["PREFIX", "wandb_files_together"]

PREFIX = "hermes_rl-wandb-"
LOCK = "lock"
_YOUNG_S = 60.0
"""Between making a directory and locking it."""


@contextmanager
def wandb_files_together() -> Iterator[None]:
    """Put what an import of wandb within the body makes where a later process will find it."""
    place = None if "wandb" in sys.modules else _own_directory()
    if place is None:
        yield
        return
    usual, tempfile.tempdir = tempfile.tempdir, str(place)
    try:
        yield
    finally:
        tempfile.tempdir = usual


def _own_directory() -> Path | None:
    """Make this process's directory and remove those of dead ones; None if there can be none."""
    root = Path(tempfile.gettempdir())
    try:
        for path in root.glob(f"{PREFIX}*"):
            _remove_abandoned(path)
        place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        lock = os.open(place / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as the process lives
    except OSError:
        return None
    atexit.register(_remove_own, place, os.getpid())
    return place


def _remove_own(place: Path, pid: int) -> None:
    if os.getpid() == pid:  # no fork of it
        shutil.rmtree(place, ignore_errors=True)


def _remove_abandoned(path: Path) -> None:
    """Remove a directory of this user whose process has ended."""
    try:
        status = path.lstat()
        if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S:
            return
        lock = os.open(path / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        return  # Its process lives.
    finally:
        os.close(lock)
