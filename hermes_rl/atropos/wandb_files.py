"""The temporary directories that wandb makes when it is imported, which atroposlib always does.

wandb removes them when the interpreter ends, but not when the process is killed. So they are put
into a directory of ours, locked while the process lives: the kernel drops the lock with the
process, and the next one removes what nobody holds.
"""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes_rl.backends.outpost.leftovers import remove_locked
from hermes_rl.backends.outpost.sandbox_lock import is_abandoned, take_lock

__all__ = ["PREFIX", "wandb_files_together"]

PREFIX = "hermes_rl-wandb-"


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
            if _is_ours(path) and is_abandoned(str(path)):
                remove_locked(str(path))
        place = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        take_lock(str(place))  # held as long as the process lives
    except OSError:
        return None
    atexit.register(_remove_own, place, os.getpid())
    return place


def _is_ours(path: Path) -> bool:
    """Tell whether it is a directory of this user; another process may have removed it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _remove_own(place: Path, pid: int) -> None:
    if os.getpid() == pid:  # no fork of it
        shutil.rmtree(place, ignore_errors=True)
