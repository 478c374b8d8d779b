"""Runs one command under a deadline and ends with its exit code; stdlib only.

    deadline.py SECONDS [NAME=VALUE ...] -- ARGUMENT...

Commands that must not pass through the outpost are started by the container engine itself, which
can neither kill what it started nor let go of output that a background process holds open. This
program does both: it copies the command's output to its own, ends when the command ends, and at
the deadline kills the command's descendants and ends with 124.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NoReturn

EXIT_TIMEOUT = 124
EXIT_CANNOT_RUN = 126
EXIT_NOT_FOUND = 127
CHUNK_BYTES = 1 << 16


def main() -> NoReturn:
    """Run ``sys.argv``; never returns."""
    deadline_s = time.monotonic() + float(sys.argv[1])
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    out, err = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        split = sys.argv.index("--")
        os.environ.update(word.split("=", 1) for word in sys.argv[2:split])
        _become(sys.argv[split + 1 :], out[1], err[1])
    os.close(out[1])
    os.close(err[1])
    status = _watch(child, {out[0]: 1, err[0]: 2}, wake_read, deadline_s)
    sys.exit(status)


def _become(argv: list[str], out: int, err: int) -> NoReturn:
    try:
        os.setsid()
        os.dup2(out, 1)
        os.dup2(err, 2)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        os.write(2, f"{argv[0]}: not found\n".encode())
        os._exit(EXIT_NOT_FOUND)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    os._exit(EXIT_CANNOT_RUN)


def _watch(child: int, copies: Mapping[int, int], wake: int, deadline_s: float) -> int:
    """Copy output until the child ends or the deadline passes; return the exit code."""
    selector = selectors.DefaultSelector()
    selector.register(wake, selectors.EVENT_READ)
    for fd in copies:
        os.set_blocking(fd, False)
        selector.register(fd, selectors.EVENT_READ)
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            _kill_tree(child)
            break
        for key, _ in selector.select(left_s):
            if key.fd == wake:
                os.read(wake, CHUNK_BYTES)
            elif not _copy(key.fd, copies[key.fd]):
                selector.unregister(key.fd)
    for fd, target in copies.items():
        while _copy(fd, target):
            pass
    if not ended:
        return EXIT_TIMEOUT
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def _copy(source: int, target: int) -> bool:
    """Copy what is there; False when nothing is or the other end is closed."""
    try:
        data = os.read(source, CHUNK_BYTES)
    except BlockingIOError:
        return False
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return bool(data)


def _kill_tree(child: int) -> None:
    """Kill the child's process group and every process that descends from it."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            parents[int(name)] = int(stat.read().rpartition(b")")[2].split()[1])
    doomed = {child}
    while True:
        more = {pid for pid, parent in parents.items() if parent in doomed} - doomed
        if not more:
            break
        doomed |= more
    for pid in doomed:
        _kill(os.kill, pid)
    _kill(os.killpg, child)


def _kill(how: Callable[[int, int], None], pid: int) -> None:
    with suppress(OSError):
        how(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
