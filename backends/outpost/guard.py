"""What runs on an ssh host besides outposts; stdlib only, Python >= 3.8.

    guard.py OUTPOST_SOURCE IMAGES_SOURCE VERB JSON

``guard``   keep one sandbox: make its directories, start its outpost (itself or in bubblewrap) on
            our standard input and output, and when that has ended kill and remove what is left
``survey``  make the base directory and say what the host has
``list``    name the sandboxes there
``sweep``   remove those that nobody keeps
``remove``  kill and remove one of them

Before anything else each verb writes the plan's ``mark``: a login shell may have said something
before. All but ``guard`` then answer with JSON.

A sandbox is a directory below the base with a file ``lock`` that its guard holds locked (flock)
and that says whose it is. The kernel drops the lock with the process, however it died, so a
directory whose lock can be taken belongs to nobody: no clock, no pid, no engine need be asked.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

EXIT_REFUSED = 96
EXIT_KILLED = 97
EXIT_OVERDUE = 98
EXIT_NO_RUNTIME = 95
FAREWELL_S = 4.0
"""After the stream's end: time for the outpost to clean up before it is killed."""
OVERDUE_S = 5.0
"""The outpost ends itself at its lease; so much later it is killed."""
KILL_LIMIT_S = 3.0
YOUNG_S = 60.0
"""A directory without a lock may be one that is being made."""
SCRATCH_S = 3600.0
"""An upload to the host that is older than this was cut short."""
UNUSED_S = 30 * 86400.0
"""A runtime directory that no engine has asked for in this time goes."""


class Refusal(Exception):
    """Something is wrong with the host or the plan; the text goes to the engine."""


def load(name: str, source: str) -> ModuleType:
    """Make a module of a program's source: the files lie on the engine's machine."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module


# Locks


def start_time(pid: int) -> str:
    """Return when a process started, in ticks since boot; "" for no process or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def make_lock(top: str, labels: dict[str, str]) -> int:
    """Lock a new sandbox's directory; the file appears when the lock is held."""
    unnamed = os.path.join(top, "lock.new")
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    write_record(lock, labels, os.getpid())
    os.rename(unnamed, os.path.join(top, "lock"))
    return lock


def write_record(lock: int, labels: dict[str, str], *pids: int) -> None:
    """Write whose the sandbox is, and its processes with their start times."""
    record = {"labels": labels, "pids": [[pid, start_time(pid)] for pid in pids]}
    data = json.dumps(record).encode()
    os.pwrite(lock, data.ljust(os.fstat(lock).st_size), 0)


def read_record(top: str) -> dict[str, Any]:
    """Return what the lock says, an empty record if nothing."""
    try:
        with open(os.path.join(top, "lock"), encoding="utf-8") as stream:
            record: dict[str, Any] = json.load(stream)
            return record
    except (OSError, ValueError):
        return {"labels": {}, "pids": []}


def is_abandoned(top: str) -> bool:
    """Tell whether nobody keeps a sandbox."""
    try:
        lock = os.open(os.path.join(top, "lock"), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
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


# Ends


def remove_tree(top: str) -> None:
    """Remove a tree, also one with directories that deny access to their owner."""
    if os.getuid() != 0:
        for directory, _, _ in os.walk(top):
            if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                try:
                    os.chmod(directory, 0o700)
                except OSError:
                    continue
    shutil.rmtree(top, ignore_errors=True)


def kill_again_and_again(outpost: ModuleType, find: Any) -> None:
    """Kill what ``find`` names until it names nothing, for a while."""
    deadline = time.monotonic() + KILL_LIMIT_S
    while time.monotonic() < deadline:
        found = [pid for pid in find() if pid != os.getpid() and start_time(pid)]
        if not found:
            return
        for pid in found:
            outpost.send_signal(pid, signal.SIGKILL)
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


def remove(plan: dict[str, Any], outpost: ModuleType) -> bool:
    """Kill and remove one sandbox."""
    top = plan["top"]
    kill_again_and_again(outpost, lambda: processes_of(top))
    remove_tree(top)
    return not os.path.lexists(top)


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


def sweep(plan: dict[str, Any], outpost: ModuleType) -> list[str]:
    """Remove what nobody keeps; return it."""
    removed = []
    for top in sandboxes(plan["base"]):
        deadline = read_record(top)["labels"].get(plan["deadline_label"], "")
        expired = deadline.isdigit() and time.time() > int(deadline) + plan["margin_s"]
        if (is_abandoned(top) or expired) and remove({"top": top}, outpost):
            removed.append(os.path.basename(top))
    for name in os.listdir(plan["base"]):
        age_s = {"runtime": UNUSED_S, ".runtime": SCRATCH_S}.get(name.partition("-")[0])
        path = os.path.join(plan["base"], name)
        if age_s is not None and is_older(path, age_s):
            remove_tree(path)
    return removed


def list_all(plan: dict[str, Any], outpost: ModuleType) -> list[dict[str, Any]]:
    """Name the sandboxes of all engines."""
    return [
        {
            "id": os.path.basename(top),
            "labels": read_record(top)["labels"],
            "abandoned": is_abandoned(top),
        }
        for top in sandboxes(plan["base"])
    ]


# What the host has


def survey(plan: dict[str, Any], outpost: ModuleType) -> dict[str, Any]:
    """Make the base directory; return what the engine wants to know."""
    base = make_base(plan["base"])
    runtime = os.path.join(base, plan["runtime"])
    has_runtime = os.path.exists(os.path.join(runtime, plan["manifest"]))
    if has_runtime:
        os.utime(runtime)
    names = [os.path.join("/etc", name) for name in plan["configuration"]]
    return {
        "base": base,
        "uid": os.getuid(),
        "machine": platform.machine(),
        "python": list(sys.version_info[:2]),
        "has_bash": shutil.which("bash") is not None,
        "bubblewrap": shutil.which("bwrap") or "",
        "has_runtime": has_runtime,
        "environment": {
            name: value
            for name, value in os.environ.items()
            if name in plan["kept"] or name.startswith("LC_")
        },
        "links": {name: os.readlink(name) for name in plan["system"] if os.path.islink(name)},
        "directories": [
            name for name in plan["system"] if os.path.isdir(name) and not os.path.islink(name)
        ],
        "configuration": {
            os.path.basename(name): os.path.realpath(name) for name in names if os.path.exists(name)
        },
        "images": [name for name, root in plan["images"].items() if os.path.isdir(root)],
    }


def make_base(wanted: str) -> str:
    """Return the parent of all sandboxes' directories, private to this user."""
    base = os.path.expanduser(wanted) if wanted else f"/tmp/hermes_rl-ssh-{os.getuid()}"
    try:
        os.makedirs(base, 0o700, exist_ok=True)
    except OSError as error:
        raise Refusal(f"{base} cannot be made: {error.strerror}") from None
    info = os.lstat(base)
    if os.path.islink(base) or info.st_uid != os.getuid():
        raise Refusal(f"{base} is not a directory of this user's")
    os.chmod(base, 0o700)
    return base


# One sandbox


class Guard:
    """Stands above one sandbox's outpost and outlives it."""

    def __init__(self, plan: dict[str, Any], outpost: ModuleType, images: ModuleType) -> None:
        self.plan = plan
        self.outpost = outpost
        self.images = images
        self.top = plan["top"]
        self.child = 0
        self.killed_by_us = False

    def run(self) -> int:
        """Return our exit code, when nothing of the sandbox is left."""
        os.umask(0o022)
        for number in self.outpost.IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self.outpost.become_subreaper()
        make_base(os.path.dirname(self.top))
        os.mkdir(self.top, 0o755)
        try:
            lock = make_lock(self.top, self.plan["labels"])
            self.prepare()
            stream = os.dup(0)
            os.set_inheritable(stream, False)
            self.child = os.fork()
            if self.child == 0:
                self.become_supervisor(stream)
            write_record(lock, self.plan["labels"], os.getpid(), self.child)
            self.let_go_of_streams()
            status = self.wait(stream)
            kill_again_and_again(self.outpost, self.heirs)
        finally:
            remove_tree(self.top)
        if self.killed_by_us:
            return EXIT_OVERDUE
        return EXIT_KILLED if os.WIFSIGNALED(status) else int(os.WEXITSTATUS(status))

    def prepare(self) -> None:
        """Make what the supervisor needs, or refuse."""
        for path in self.plan["needed"]:
            if not os.path.exists(path):
                sys.stderr.write(f"hermes: {path} is gone\n")
                sys.stderr.flush()
                remove_tree(self.top)
                os._exit(EXIT_NO_RUNTIME)
        for path in self.plan["directories"]:
            os.makedirs(os.path.join(self.top, path), exist_ok=True)
        cwd = self.plan["cwd"]
        if not os.path.isdir(cwd):
            raise Refusal(f"workdir {cwd} does not exist on the host")

    def become_supervisor(self, stream: int) -> None:
        """In the child: become the outpost, or the program that isolates one. Never returns."""
        code = EXIT_REFUSED
        try:
            os.close(stream)
            os.setsid()
            os.chdir(self.plan["cwd"])
            if self.plan["image"]:
                self.images.mount_image(self.top, self.plan["image"])
            if self.plan["argv"]:
                for number in self.outpost.RESET_SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                os.execve(self.plan["argv"][0], self.plan["argv"], {})
            os.environ.clear()
            options = self.outpost.parse_options(self.plan["options"])
            self.outpost.Outpost(options, *self.outpost.private_streams()).serve()
            code = 0
        except (Refusal, OSError) as error:
            os.write(2, b"hermes: %s\n" % os.fsencode(str(error)))
        finally:
            os._exit(code)

    def let_go_of_streams(self) -> None:
        """The stream ends with the supervisor, not with us."""
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)

    def wait(self, stream: int) -> int:
        """Wait for the child's end; when the engine is gone or time is up, see to it."""
        wake, wake_end = os.pipe()
        for fd in (wake, wake_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(stream, 0)  # nothing but its end
        end = time.monotonic() + self.plan["lease_s"] + OVERDUE_S
        while True:
            status = self.reap()
            if status is not None:
                return status
            left_s = end - time.monotonic()
            if left_s <= 0:
                self.killed_by_us = True
                self.outpost.send_signal(self.child, signal.SIGKILL)
                left_s = 1.0
            for fd, _ in poll.poll(left_s * 1000):
                if fd == stream:
                    poll.unregister(stream)
                    end = min(end, time.monotonic() + FAREWELL_S)
                else:
                    os.read(wake, 4096)

    def reap(self) -> int | None:
        """Collect the dead; return the child's status if it is among them."""
        found = None
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return found
            if pid == 0:
                return found
            if pid == self.child:
                found = status

    def heirs(self) -> list[int]:
        """What the dead supervisor left to us."""
        self.reap()
        return [pid for pid, _ in self.outpost.Processes().descendants()]


VERBS = {"survey": survey, "sweep": sweep, "list": list_all, "remove": remove}


def main(arguments: list[str]) -> int:
    """Do what we were told."""
    outpost, images = load("outpost", arguments[0]), load("images", arguments[1])
    verb, plan = arguments[2], json.loads(arguments[3])
    outpost.write_all(1, plan["mark"].encode())
    try:
        if verb == "guard":
            return Guard(plan, outpost, images).run()
        answer = json.dumps({"done": VERBS[verb](plan, outpost)})
        outpost.write_all(1, answer.encode())
    except (Refusal, OSError) as error:
        os.write(2, b"hermes: %s\n" % os.fsencode(str(error)))
        return EXIT_REFUSED
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
