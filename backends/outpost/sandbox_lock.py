"""The lock of a directory: who keeps it, and since when; stdlib only, >= 3.8.

A sandbox on an ssh host is a directory with a file ``lock`` that its guard holds locked (flock) and
that says whose it is; a local backend's directory is locked like that by its engine. The kernel
drops the lock with the process, however it died, so a directory whose lock can be taken belongs to
nobody: no clock, no pid, no engine need be asked.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable
from typing import Any

LOCK_NAME = "lock"
RECORD_BYTES = 4096
"""Taken at once, so that a disk that is full later has room for more pids."""
YOUNG_S = 60.0
"""A directory without a lock may be one that is being made."""


def start_time(pid: int) -> str:
    """Return when a process started, in ticks since boot; "" for no process or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def take_lock(top: str, write: Callable[[int], object] = lambda lock: None) -> int:
    """Lock a new directory, as long as the returned descriptor is open and its process lives.

    The file appears when the lock is held and ``write`` has written what it is to say.
    """
    unnamed = os.path.join(top, "lock.new")
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        write(lock)
        os.rename(unnamed, os.path.join(top, LOCK_NAME))
    except BaseException:
        os.close(lock)
        raise
    return lock


def make_lock(top: str, labels: dict[str, str]) -> int:
    """Lock a new sandbox's directory, in our name."""
    return take_lock(top, lambda lock: write_record(lock, labels, os.getpid()))


def write_record(lock: int, labels: dict[str, str], *pids: int) -> None:
    """Write whose the sandbox is, and its processes with their start times."""
    record = {"labels": labels, "pids": [[pid, start_time(pid)] for pid in pids]}
    data = json.dumps(record).encode()
    size = max(RECORD_BYTES, os.fstat(lock).st_size)
    os.pwrite(lock, data.ljust(size), 0)


def read_record(top: str) -> dict[str, Any]:
    """Return what the lock says, an empty record if nothing."""
    try:
        with open(os.path.join(top, LOCK_NAME), encoding="utf-8") as stream:
            record: dict[str, Any] = json.load(stream)
            return record
    except (OSError, ValueError):
        return {"labels": {}, "pids": []}


def is_abandoned(top: str) -> bool:
    """Tell whether nobody keeps a sandbox."""
    try:
        lock = os.open(os.path.join(top, LOCK_NAME), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return is_older(top, YOUNG_S)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def is_older(path: str, age_s: float) -> bool:
    """Tell whether a path was last changed so long ago."""
    try:
        return time.time() - os.lstat(path).st_mtime > age_s
    except OSError:
        return False
