"""A helper process of the local backend: forks one keeper, an outpost, per sandbox.

Started once by the engine as ``python -ISc`` over a SEQPACKET socket on standard input, so that
the engine itself never forks: forking from a small process takes a millisecond, from an engine
of gigabytes hundreds. Messages are JSON::

    -> {"op": "start", "id": ..., "cwd": ..., "options": {...}}    with the keeper's stream as fd
    -> {"op": "start", "id": ..., "argv": [...], "remove": [...]}  another program as the keeper,
                                                 with "stderr": a file for what it complains of
    -> {"op": "kill", "id": ...}
    <- {"op": "ended", "id": ..., "status": ...}      nothing of the sandbox is left
    <- {"op": "ended", "id": ..., "error": [errno, text, file]}    it could not be started

It is a child subreaper above its keepers: when one is killed its processes become our children,
which is how we know them and kill them. When the engine dies each keeper sees its own stream end;
when we die they see it on the lifeline, a pipe of which we hold the only writing end.
"""

from __future__ import annotations

import errno
import gc
import importlib.util
import json
import os
import selectors
import signal
import socket
import sys
import time
from types import ModuleType
from typing import Any

MESSAGE_BYTES = 256 * 1024
CLEAN_INTERVAL_S = 0.005
CLEAN_LIMIT_S = 5.0
FAREWELL_S = 8.0
"""After the engine's end: time for the keepers to clean up before they are killed."""


def load_outpost() -> ModuleType:
    """Load the file beside this one; ``-I`` keeps our directory off the module path."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "outpost.py")
    spec = importlib.util.spec_from_file_location("outpost", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["outpost"] = module
    spec.loader.exec_module(module)
    return module


class Keeper:
    """One sandbox: its supervisor's process id and what to remove after it."""

    def __init__(self, id: str, pid: int, removed: list[str]) -> None:
        self.id = id
        self.pid = pid
        self.removed = removed
        self.status: int | None = None
        self.error: OSError | None = None
        self.ended_at = 0.0


def removed_after(message: dict[str, Any]) -> list[str]:
    """Return what is to be removed when a keeper has ended."""
    removed: list[str] = message.get("remove") or message["options"]["remove"]
    return removed


class Nursery:
    """The helper's main loop."""

    def __init__(self, control: socket.socket, outpost: ModuleType) -> None:
        self.control = control
        self.outpost = outpost
        self.processes = outpost.Processes()
        self.keepers: dict[int, Keeper] = {}
        self.dead: list[Keeper] = []
        self.removers: dict[int, Keeper] = {}
        self.deadline: float | None = None
        self.lifeline, self.lifeline_end = os.pipe()
        self.selector = selectors.DefaultSelector()
        self.signals, signals_end = os.pipe()
        for fd in (self.signals, signals_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(signals_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in outpost.IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        control.setblocking(False)
        self.selector.register(control, selectors.EVENT_READ, self.message)
        self.selector.register(self.signals, selectors.EVENT_READ, self.reap)

    def serve(self) -> None:
        """Work until the engine is gone and so is every keeper."""
        while self.deadline is None or self.keepers or self.dead or self.removers:
            wait_s = CLEAN_INTERVAL_S if self.dead else (None if self.deadline is None else 0.1)
            for key, _ in self.selector.select(wait_s):
                key.data()
            if self.dead:
                self.clean()
            if self.deadline is not None and time.monotonic() > self.deadline:
                for pid in self.keepers:
                    self.outpost.send_signal(pid, signal.SIGKILL)

    def message(self) -> None:
        """Take one message; the end of the socket is the end of the engine."""
        data, fds, _, _ = socket.recv_fds(self.control, MESSAGE_BYTES, 1)
        if not data:
            self.selector.unregister(self.control)
            self.deadline = time.monotonic() + FAREWELL_S
            return
        message = json.loads(data)
        for fd in fds:
            os.set_inheritable(fd, False)  # a command that held it would keep the stream open
        if message["op"] == "start":
            self.try_to_start(message, fds)
        else:
            for keeper in self.keepers.values():
                if keeper.id == message["id"]:
                    self.outpost.send_signal(keeper.pid, signal.SIGKILL)

    def try_to_start(self, message: dict[str, Any], fds: list[int]) -> None:
        """Start a keeper; one for which the machine has no room is no concern of the others."""
        try:
            if not fds:  # the kernel drops what finds no free number
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self.start(message, fds[0])
        except OSError as error:
            keeper = Keeper(message["id"], 0, removed_after(message))
            keeper.error = error
            keeper.ended_at = time.monotonic()
            self.dead.append(keeper)
        finally:
            for fd in fds:
                os.close(fd)

    def start(self, message: dict[str, Any], stream: int) -> None:
        """Fork a keeper, or start the given program as one, on ``stream``."""
        if "argv" in message:
            pid = self.spawn(message, stream)
        else:
            pid = os.fork()
            if pid == 0:
                self.keep(message, stream)
        self.keepers[pid] = Keeper(message["id"], pid, removed_after(message))

    def spawn(self, message: dict[str, Any], stream: int) -> int:
        """Start the program that isolates and runs an outpost."""
        argv = message["argv"]
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, stream, 0),
            (os.POSIX_SPAWN_DUP2, stream, 1),
        ]
        if message.get("stderr"):
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            actions.append((os.POSIX_SPAWN_OPEN, 2, message["stderr"], flags, 0o600))
        return os.posix_spawn(
            argv[0],
            argv,
            message["env"],
            file_actions=actions,
            setsid=True,
            setsigdef=self.outpost.RESET_SIGNALS,
        )

    def keep(self, message: dict[str, Any], stream: int) -> None:
        """In the forked child: become the outpost of one sandbox. Never returns."""
        code = 1
        try:
            self.let_go()
            os.setsid()
            os.chdir(message["cwd"])
            os.environ.clear()
            fd_out = os.dup(stream)
            keeper = self.outpost.Outpost(message["options"], stream, fd_out)
            keeper.watch(
                self.lifeline, selectors.EVENT_READ, lambda: keeper.finish("the helper died")
            )
            keeper.serve()
            code = 0
        finally:
            os._exit(code)

    def let_go(self) -> None:
        """In a forked child: close what is the helper's alone, above all the lifeline."""
        signal.set_wakeup_fd(-1)
        self.selector.close()
        self.control.close()
        for fd in (self.lifeline_end, self.signals):
            os.close(fd)

    def reap(self) -> None:
        """Collect dead keepers, and the orphans we had to kill; wake keepers that were stopped."""
        os.read(self.signals, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):  # by a command: nobody else would end it in time
                if pid in self.keepers:
                    self.outpost.send_signal(pid, signal.SIGCONT)
                continue
            keeper = self.keepers.pop(pid, None)
            if keeper is not None:
                keeper.status = status
                keeper.ended_at = time.monotonic()
                self.dead.append(keeper)
            elif pid in self.removers:
                self.report(self.removers.pop(pid))

    def clean(self) -> None:
        """Kill what a dead keeper left to us; then remove its files and report."""
        left = 0
        strangers: set[int] = set()
        for pid, parent in self.processes.descendants():
            is_child = parent == self.processes.pid
            is_ours = pid in self.keepers or pid in self.removers
            if (is_child and not is_ours) or parent in strangers:
                strangers.add(pid)
                stat = self.outpost.slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()
                if stat and stat[0] != b"Z":
                    left += self.outpost.send_signal(pid, signal.SIGKILL)
        now = time.monotonic()
        if left and now - self.dead[0].ended_at < CLEAN_LIMIT_S:
            return
        dead, self.dead = self.dead, []
        for keeper in dead:
            self.remove_files(keeper)

    def remove_files(self, keeper: Keeper) -> None:
        """Remove what a keeper left, in a process of its own: a million files take long."""
        left = [os.fsencode(path) for path in keeper.removed if os.path.lexists(path)]
        if not left:
            self.report(keeper)
            return
        try:
            pid = os.fork()
        except OSError:  # no room for one: then it is we who are busy for a while
            self.remove_trees(left)
            self.report(keeper)
            return
        if pid == 0:
            try:
                self.let_go()
                self.remove_trees(left)
            finally:
                os._exit(0)
        self.removers[pid] = keeper

    def remove_trees(self, paths: list[bytes]) -> None:
        """Remove directory trees."""
        for path in paths:
            self.outpost.remove_tree(path)

    def report(self, keeper: Keeper) -> None:
        """Tell the engine that nothing of a sandbox is left."""
        message: dict[str, Any] = {"op": "ended", "id": keeper.id, "status": keeper.status}
        if keeper.error is not None:
            error = keeper.error
            message["error"] = [error.errno, error.strerror, error.filename]
        try:
            self.control.setblocking(True)
            self.control.send(json.dumps(message).encode())
        except OSError:
            return  # the engine is gone; nobody wants to know
        finally:
            self.control.setblocking(False)


def main() -> None:
    """Serve the socket on standard input."""
    control = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    outpost = load_outpost()
    nursery = Nursery(control, outpost)
    gc.collect()
    gc.freeze()  # what is here now is shared with the keepers, not copied on their collections
    nursery.serve()


if __name__ == "__main__":
    main()
