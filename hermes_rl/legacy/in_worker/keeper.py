"""The parent of a worker: sees to it that nothing of the worker outlives the engine.

A worker imports much foreign code, starts browsers that put themselves in the background, and may
hang in any of it. Its keeper imports nothing and holds three things: the worker's process, every
descendant of it (it is their *subreaper*: orphans become its children), and the private directory.
When the worker ends, or the engine's end of standard input closes and the worker does not end
within the grace, the keeper kills all that is left, removes the directory and ends as well. If the
keeper itself is killed, the kernel kills the worker.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["LOG_NAME", "keep"]

GRACE_S = 3.8
"""From the end of standard input to the kill; a worker's own clean-up is bounded below it."""
SWEEP_S = 1.0
"""Longest wait for killed processes to be gone."""
SWEEP_POLL_MS = 10
TERMINATED = 128 + signal.SIGTERM
LOG_NAME = "log"
LOG_TAIL_BYTES = 2_000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def keep(work: Callable[[Path], None]) -> None:
    """Run ``work`` in a child with a private directory; ends this process with its exit code."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    directory = Path(tempfile.mkdtemp(prefix="hermes-rl-"))
    code = TERMINATED
    try:
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            _work(work, directory, keeper)
        os.close(1)  # Only the worker's copy is left: its death is the stream's end.
        code = _wait(child)
        if code not in (0, 2):
            _tell(directory / LOG_NAME)
    finally:
        _kill_descendants()
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(code)


def _work(work: Callable[[Path], None], directory: Path, keeper: int) -> None:
    """The child's part; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == keeper:  # Else it died before the line above.
            work(directory)
            code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _wait(child: int) -> int:
    """Return the worker's exit code; kill it when the engine is gone and it stays."""
    poll = select.poll()
    ending = os.pidfd_open(child)
    poll.register(ending, select.POLLIN)
    poll.register(0, 0)  # Reports only that the other end is closed; the worker reads the data.
    deadline: float | None = None
    while True:
        left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        events = dict(poll.poll(left_ms))
        if ending in events:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if 0 in events:
            poll.unregister(0)
            deadline = time.monotonic() + GRACE_S
        elif deadline is not None and time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            deadline = None


def _tell(log: Path) -> None:
    """Write the end of the worker's log where the engine reads why it died."""
    with suppress(OSError):
        os.write(2, log.read_bytes()[-LOG_TAIL_BYTES:])


def _kill_descendants() -> None:
    """Kill everything below this process and wait, bounded, until it is gone."""
    deadline = time.monotonic() + SWEEP_S
    while time.monotonic() < deadline:
        for pid in _descendants(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        select.poll().poll(SWEEP_POLL_MS)


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                # The name, in parentheses, may hold anything; the parent is the second field after.
                after = Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2]
                children.setdefault(int(after.split()[1]), []).append(int(entry))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
