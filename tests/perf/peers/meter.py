"""What every peer's program shares: it starts a sandbox, then runs commands when told.

A program prints a line of JSON per step: first ``{"version", "start_ms"}``, then for each line
``N`` of its input, N commands one after the other, ``{"times_ms", "cpu_s"}``. CPU is that of all
parties: the program and its children, the daemons, the sandbox. It ends, and removes what it made,
when its input ends. Only the standard library: interpreters that lack our packages import this.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from docker_cpu import cpu_seconds

IMAGE = "hermes-test:latest"
COMMAND = "echo hi"
WANTED = "hi\n"

_out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # whatever the peer prints does not come between


def say(**fields: Any) -> None:
    """Print one step's result."""
    _out.write(json.dumps(fields) + "\n")
    _out.flush()


def container_named(part: str) -> str:
    """Full id of the one running container whose name holds ``part``."""
    words = ["docker", "ps", "-q", "--no-trunc", "--filter", f"name={part}"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    (found,) = done.stdout.split()
    return found


async def serve(
    package: str, began_s: float, container: str, run: Callable[[], Awaitable[str]]
) -> None:
    """Answer until the input ends; ``run`` runs the command and returns what it printed."""
    say(version=version(package), start_ms=(time.perf_counter() - began_s) * 1000)
    while line := sys.stdin.readline():
        times_ms = []
        before_s = cpu_seconds([container])
        for _ in range(int(line)):
            start_s = time.perf_counter()
            printed = await run()
            times_ms.append((time.perf_counter() - start_s) * 1000)
            if printed.strip() != WANTED.strip():
                raise RuntimeError(f"{package} printed {printed!r}")
        say(times_ms=times_ms, cpu_s=cpu_seconds([container]) - before_s)
