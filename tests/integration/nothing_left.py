"""Run a command and fail if a process of it outlives it: ``nothing_left.py COMMAND ...``.

This process adopts the command's orphans, so none escapes its count. SIGTERM and SIGINT are passed
on. The exit code is the command's, or 99 with a list of what was left.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SET_CHILD_SUBREAPER = 36
GRACE_S = 5.0
LEFT_BEHIND = 99


def children() -> dict[int, str]:
    found = {}
    for pid in map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        found[pid] = words.decode(errors="replace")
    return found


def reap() -> bool:
    """Collect what has ended; True if no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


def main() -> int:
    ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    command = subprocess.Popen(sys.argv[1:])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda signum, _: command.send_signal(signum))
    code = command.wait()
    deadline_s = time.monotonic() + GRACE_S
    while not reap():
        if time.monotonic() > deadline_s:
            left = children()
            sys.stderr.write(f"LEFT BEHIND: {left}\n")
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            return LEFT_BEHIND
        time.sleep(0.02)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
