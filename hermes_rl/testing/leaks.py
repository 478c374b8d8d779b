"""A census of what a piece of code may leave behind: tasks, threads, files, processes, containers.

::

    async def test_nothing_is_left():
        async with leak_census():
            ...

Everything counted afterwards that was not there before must be gone within a short grace, in
which the loop may run what was already on its way out.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType

import anyio

__all__ = ["Census", "leak_census", "take_census"]

GRACE_S = 5.0
"""For what is already ending: sockets being closed, children being reaped."""
POLL_S = 0.02


@dataclass(slots=True, frozen=True)
class Census:
    """What exists at a moment, each thing by a name that tells it from others of its kind."""

    tasks: frozenset[str]
    threads: frozenset[str]
    files: frozenset[str]
    processes: frozenset[str]
    containers: frozenset[str] = frozenset()

    def beyond(self, earlier: Census) -> dict[str, list[str]]:
        """Return what exists here but not in ``earlier``, by kind; empty if nothing does."""
        extra = {
            field.name: sorted(getattr(self, field.name) - getattr(earlier, field.name))
            for field in fields(self)
        }
        return {kind: names for kind, names in extra.items() if names}


async def take_census(*, container_label: str | None = None) -> Census:
    """Count everything now.

    Args:
        container_label: Docker containers with this label (``key`` or ``key=value``) are counted
            too, in all states.
    """
    gc.collect()
    current = asyncio.current_task()
    return Census(
        tasks=frozenset(_task_name(task) for task in asyncio.all_tasks() if task is not current),
        threads=frozenset(_threads()),
        files=frozenset(_open_files()),
        processes=frozenset(_children(os.getpid())),
        containers=frozenset(await _containers(container_label) if container_label else ()),
    )


@asynccontextmanager
async def leak_census(
    *, container_label: str | None = None, grace_s: float = GRACE_S
) -> AsyncIterator[None]:
    """Raise AssertionError if the body leaves something behind.

    Args:
        container_label: See :func:`take_census`.
        grace_s: Seconds for what is still ending.
    """
    before = await take_census(container_label=container_label)
    yield
    deadline_s = anyio.current_time() + grace_s
    while left := (await take_census(container_label=container_label)).beyond(before):
        if anyio.current_time() > deadline_s:
            listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in left.items())
            raise AssertionError(f"Left behind: {listed}")
        await anyio.sleep(POLL_S)


def _task_name(task: asyncio.Task[object]) -> str:
    return f"{task.get_name()} {id(task):x} {task.get_coro()!r}"


def _threads() -> Iterable[str]:
    """Yield live threads, but for the idle ones that anyio keeps for its next use."""
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and not _is_idle_worker(thread, frame):
            yield f"{thread.name} {thread.ident}"


def _is_idle_worker(thread: threading.Thread, frame: FrameType) -> bool:
    if type(thread).__name__ != "WorkerThread":
        return False
    waiting_in = Path(frame.f_code.co_filename).name
    caller = frame.f_back
    if waiting_in == "threading.py" and caller is not None:
        waiting_in = Path(caller.f_code.co_filename).name
    return waiting_in == "queue.py"


def _open_files() -> Iterable[str]:
    for entry in os.listdir("/proc/self/fd"):
        try:
            yield f"{entry} -> {os.readlink(f'/proc/self/fd/{entry}')}"
        except FileNotFoundError:
            continue  # The descriptor that listed the directory.


def _children(pid: int) -> Iterable[str]:
    """Yield all living descendants; a zombie counts: nobody waited for it."""
    for task in _listed(f"/proc/{pid}/task"):
        try:
            text = Path(f"/proc/{pid}/task/{task}/children").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in map(int, text.split()):
            yield f"{child} {_command(child)}"
            yield from _children(child)


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def _containers(label: str) -> list[str]:
    if shutil.which("docker") is None:
        return []
    command = ["docker", "ps", "--all", "--quiet", "--filter", f"label={label}"]
    return (await anyio.run_process(command)).stdout.decode().split()
