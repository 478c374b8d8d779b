"""What runs on an ssh host besides outposts; stdlib only, Python >= 3.8.

    guard VERB JSON

``guard``   keep one sandbox: make its directories, start its outpost (itself or in bubblewrap) on
            our standard input and output, and when that has ended kill and remove what is left
``survey``  make the base directory and say what the host has
``unpack``  make a directory of an image's archive
``list``    name the sandboxes there
``sweep``   remove those that nobody keeps
``remove``  kill and remove one of them

Before anything else each verb writes the plan's ``mark``: a login shell may have said something
before. All but ``guard`` then answer with JSON. ``bundle.py`` starts us and brings our modules.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any

from hermes_rl.backends.outpost.host_survey import Refusal, make_base, survey
from hermes_rl.backends.outpost.image_archive import unpack
from hermes_rl.backends.outpost.image_mount import mount_image
from hermes_rl.backends.outpost.leftovers import (
    kill_again_and_again,
    list_all,
    remove,
    remove_tree,
    sweep,
)
from hermes_rl.backends.outpost.outpost import (
    IGNORED_SIGNALS,
    RESET_SIGNALS,
    Outpost,
    Processes,
    become_subreaper,
    parse_options,
    private_streams,
    send_signal,
    write_all,
)
from hermes_rl.backends.outpost.sandbox_lock import make_lock, write_record

EXIT_TROUBLE = 94
"""The host could not: a full disk, no more processes. Another may."""
EXIT_NO_RUNTIME = 95
EXIT_REFUSED = 96
EXIT_KILLED = 97
EXIT_OVERDUE = 98
FAREWELL_S = 4.0
"""After the stream's end: time for the outpost to clean up before it is killed."""
OVERDUE_S = 5.0
"""The outpost ends itself at its lease; so much later it is killed."""


class Guard:
    """Stands above one sandbox's outpost and outlives it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.top = plan["top"]
        self.child = 0
        self.killed_by_us = False

    def run(self) -> int:
        """Return our exit code, when nothing of the sandbox is left."""
        os.umask(0o022)
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        become_subreaper()
        make_base(os.path.dirname(self.top))
        os.mkdir(self.top, 0o755)
        status = None
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
            kill_again_and_again(self.heirs)
        finally:
            if self.child and status is None:  # we failed: it may not live without us
                send_signal(self.child, signal.SIGKILL)
                kill_again_and_again(self.heirs)
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
                mount_image(self.top, self.plan["image"])
            if self.plan["argv"]:
                for number in RESET_SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                os.execve(self.plan["argv"][0], self.plan["argv"], {})
            os.environ.clear()
            options = parse_options(self.plan["options"])
            Outpost(options, *private_streams()).serve()
            code = 0
        except (Refusal, OSError) as error:
            code = complain(error)
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
                send_signal(self.child, signal.SIGKILL)
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
        return [pid for pid, _ in Processes().descendants()]


VERBS = {"survey": survey, "unpack": unpack, "sweep": sweep, "list": list_all, "remove": remove}


def complain(error: Exception) -> int:
    """Say what went wrong; return the exit code for it."""
    os.write(2, b"hermes: %s\n" % os.fsencode(str(error)))
    return EXIT_REFUSED if isinstance(error, Refusal) else EXIT_TROUBLE


def main(arguments: list[str]) -> int:
    """Do what we were told."""
    verb, plan = arguments[0], json.loads(arguments[1])
    write_all(1, plan["mark"].encode())
    try:
        if verb == "guard":
            return Guard(plan).run()
        write_all(1, json.dumps({"done": VERBS[verb](plan)}).encode())
    except (Refusal, OSError) as error:
        return complain(error)
    return 0
