"""Finds, kills and removes sandboxes on an ssh host; stdlib only, Python >= 3.8."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hermes_rl.backends.outpost.outpost import send_signal
from hermes_rl.backends.outpost.sandbox_lock import (
    LOCK_NAME,
    is_abandoned,
    is_older,
    read_record,
    start_time,
)

KILL_LIMIT_S = 3.0
SCRATCH_S = 3600.0
"""An upload or archive whose unpacking began longer ago was cut short."""
UNUSED_S = 30 * 86400.0
"""What no engine has asked for in this time goes."""
AGES_S = {
    "runtime": UNUSED_S,
    ".runtime": SCRATCH_S,
    "image": UNUSED_S,
    ".image": SCRATCH_S,
}


def remove_tree(top: str | os.PathLike[str]) -> None:
    """Remove a tree, also one with directories that deny access to their owner."""
    if os.getuid() != 0:
        open_to_us(top)
        for directory, names, _ in os.walk(top):
            for name in names:
                open_to_us(os.path.join(directory, name))
    shutil.rmtree(top, ignore_errors=True)


def remove_locked(top: str) -> bool:
    """Remove a sandbox's directory, its lock at last; tell whether it is gone.

    Where something stays, as what a process adds meanwhile, so does the lock: without one the
    directory would look like one that is being made.
    """
    open_to_us(top)
    with contextlib.suppress(OSError):  # what is left is looked at below
        for name in set(os.listdir(top)) - {LOCK_NAME}:
            path = os.path.join(top, name)
            if os.path.isdir(path) and not os.path.islink(path):
                remove_tree(path)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(path)
        if set(os.listdir(top)) <= {LOCK_NAME}:
            remove_tree(top)
    return not os.path.lexists(top)


def open_to_us(directory: str | os.PathLike[str]) -> None:
    """Give ourselves all rights on a directory, if they are ours to give."""
    if os.path.islink(directory) or os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return
    with contextlib.suppress(OSError):
        os.chmod(directory, 0o700)


def kill_again_and_again(find: Callable[[], Iterable[int]]) -> None:
    """Kill what ``find`` names until it names nothing, for a while."""
    deadline = time.monotonic() + KILL_LIMIT_S
    while time.monotonic() < deadline:
        found = [pid for pid in find() if pid != os.getpid() and start_time(pid)]
        if not found:
            return
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        select.poll().poll(5)


def processes_of(top: str) -> Iterator[int]:
    """Yield a sandbox's guard, supervisor, their descendants, and what has its TMPDIR."""
    parents = {}
    mark = b"\0TMPDIR=" + os.fsencode(os.path.join(top, "tmp")) + b"\0"
    inside = {pid for pid, start in read_record(top)["pids"] if start and start_time(pid) == start}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as stream:
                parents[int(name)] = int(stream.read().rpartition(b")")[2].split()[1])
            with open(f"/proc/{name}/environ", "rb") as stream:
                if mark in b"\0" + stream.read() + b"\0":
                    inside.add(int(name))
        except OSError:
            continue
    while True:
        more = {pid for pid, parent in parents.items() if parent in inside} - inside
        if not more:
            return iter(inside)
        inside |= more


def remove(plan: dict[str, Any]) -> bool:
    """Kill and remove one sandbox."""
    top = plan["top"]
    kill_again_and_again(lambda: processes_of(top))
    return remove_locked(top)


def sandboxes(base: str) -> Iterator[str]:
    """Yield the directories of sandboxes."""
    try:
        names = sorted(os.listdir(base))
    except FileNotFoundError:
        return
    for name in names:
        path = os.path.join(base, name)
        if name.startswith("ssh-") and os.path.isdir(path) and not os.path.islink(path):
            yield path


def verdict(top: str, plan: dict[str, Any]) -> str:
    """Tell whether a sandbox is kept, its owner dead, or its time long over."""
    if is_abandoned(top):
        return "owner dead"
    deadline = read_record(top)["labels"].get(plan["deadline_label"], "")
    is_over = deadline.isdigit() and time.time() > int(deadline) + plan["margin_s"]
    return "expired" if is_over else "keep"


def sweep(plan: dict[str, Any]) -> list[str]:
    """Remove what nobody keeps; return it."""
    doomed = [top for top in sandboxes(plan["base"]) if verdict(top, plan) != "keep"]
    removed = [os.path.basename(top) for top in doomed if remove({"top": top})]
    for name in os.listdir(plan["base"]):
        age_s = AGES_S.get(name.partition("-")[0])
        path = os.path.join(plan["base"], name)
        if age_s is not None and is_older(path, age_s):
            remove_tree(path)
    return removed


def list_all(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Name the sandboxes of all engines."""
    return [
        {
            "id": os.path.basename(top),
            "labels": read_record(top)["labels"],
            "verdict": verdict(top, plan),
        }
        for top in sandboxes(plan["base"])
    ]
