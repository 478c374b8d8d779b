"""Runs one command under a deadline and ends with its exit code; stdlib only.

    deadline.py SECONDS STDIN_BYTES [NAME=VALUE ...] -- ARGUMENT...

Commands that must not pass through the outpost are started by the container engine itself, which
can neither kill what it started nor let go of output that a background process holds open. This
program does both: it copies the command's output to its own and ends when the command ends. At the
deadline, and when its own input is closed by whoever waits for it, it kills the command with all
its descendants and ends with 124. The first STDIN_BYTES bytes of its input are the command's.
"""

from __future__ import annotations

import os
import select
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
STDIN = 0


def main() -> NoReturn:
    """Run ``sys.argv``; never returns."""
    deadline_s = time.monotonic() + float(sys.argv[1])
    wake_read, wake_write = os.pipe()
    for fd in (wake_read, wake_write):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    feed, out, err = os.pipe(), os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        split = sys.argv.index("--")
        _restore_environment()
        for name, _, value in (word.partition("=") for word in sys.argv[3:split]):
            os.environ[name] = value
        _become(sys.argv[split + 1 :], feed[0], out[1], err[1])
    for fd in (feed[0], out[1], err[1]):
        os.close(fd)
    watch = Watch(child, {out[0]: 1, err[0]: 2}, wake_read)
    watch.feed_input(feed[1], int(sys.argv[2]))
    sys.exit(watch.run(deadline_s))


def _restore_environment() -> None:
    """Undo what the interpreter set by itself: LC_CTYPE, where no UTF-8 locale is set."""
    with open("/proc/self/environ", "rb") as given:
        pairs = [item.split(b"=", 1) for item in given.read().split(b"\0") if b"=" in item]
    os.environb.clear()
    for name, value in pairs:
        os.environb[name] = value


def _become(argv: list[str], feed: int, out: int, err: int) -> NoReturn:
    try:
        os.setsid()
        for fd, standard in ((feed, 0), (out, 1), (err, 2)):
            os.dup2(fd, standard)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        os.write(2, f"{argv[0]}: not found\n".encode())
        os._exit(EXIT_NOT_FOUND)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    os._exit(EXIT_CANNOT_RUN)


class Watch:
    """Copies a child's output and input until it ends, the deadline passes or we are left."""

    def __init__(self, child: int, copies: Mapping[int, int], wake: int) -> None:
        self.child = child
        self.copies = copies
        self.wake = wake
        self.feed = -1
        self.input_left = 0
        self.pending = b""
        self.poll = select.poll()
        for fd in (wake, *copies):
            os.set_blocking(fd, False)
            self.poll.register(fd, select.POLLIN)

    def feed_input(self, feed: int, size: int) -> None:
        """Pass ``size`` bytes of our input on to ``feed``, then close it."""
        self.feed = feed
        self.input_left = size
        os.set_blocking(feed, False)
        self.poll.register(STDIN, select.POLLIN)
        self._push()

    def run(self, deadline_s: float) -> int:
        """Return the exit code."""
        while True:
            ended, status = os.waitpid(self.child, os.WNOHANG)
            if ended:
                break
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._turn(left_s):
                kill_tree(self.child)
                break
        for fd, target in self.copies.items():
            while copy(fd, target):
                pass
        if not ended:
            return EXIT_TIMEOUT
        if os.WIFSIGNALED(status):
            return 128 + os.WTERMSIG(status)
        return os.WEXITSTATUS(status)

    def _turn(self, wait_s: float) -> bool:
        """Do what there is to do; False when whoever started us has gone."""
        for fd, _ in self.poll.poll(int(wait_s * 1000) + 1):
            if fd == self.wake:
                os.read(fd, CHUNK_BYTES)
            elif fd == STDIN:
                if not self._pull():
                    return False
            elif fd == self.feed:
                self._push()
            elif not copy(fd, self.copies[fd]):
                self.poll.unregister(fd)
        return True

    def _pull(self) -> bool:
        """Read input; False at its end, which nobody but our starter brings about."""
        data = os.read(STDIN, min(self.input_left, CHUNK_BYTES) or 1)
        if self.input_left:
            self.input_left -= len(data)
            self.pending += data
            # Until the command has taken this, only the end of our input is of interest.
            self.poll.modify(STDIN, 0)
            self._push()
        return bool(data)

    def _push(self) -> None:
        """Give the command its input, as much as it takes."""
        if self.feed < 0:
            return
        try:
            while self.pending:
                self.pending = self.pending[os.write(self.feed, self.pending) :]
        except BlockingIOError:
            self.poll.register(self.feed, select.POLLOUT)
            return
        except OSError:
            self.pending, self.input_left = b"", 0
        with suppress(KeyError):
            self.poll.unregister(self.feed)
        self.poll.modify(STDIN, select.POLLIN)
        if not self.input_left:
            os.close(self.feed)
            self.feed = -1


def copy(source: int, target: int) -> bool:
    """Copy what is there; False when nothing is or the other end is closed."""
    try:
        data = os.read(source, CHUNK_BYTES)
    except BlockingIOError:
        return False
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return bool(data)


def kill_tree(child: int) -> None:
    """Kill the child's process group and every process that descends from it.

    Parents first, so that no shell lives to report that its child was killed.
    """
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as stat:
            parent = int(stat.read().rpartition(b")")[2].split()[1])
            children.setdefault(parent, []).append(int(name))
    doomed = [child]
    for pid in doomed:  # grows while it is walked
        doomed += children.pop(pid, ())
    for pid in doomed:
        _kill(os.kill, pid)
    _kill(os.killpg, child)


def _kill(how: Callable[[int, int], None], pid: int) -> None:
    with suppress(OSError):
        how(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
