"""``serve`` as a user runs it: a process of its own, of which nothing may be left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from .evaluate_process import environment

NOTHING_LEFT = Path(__file__).with_name("nothing_left.py")


class ServeProcess:
    """A running ``serve``; what it says goes to a file in its working directory."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._log = folder / "serve.log"
        self._tmp = folder / "tmp"
        self._tmp.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "hermes_rl", "serve", *words]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, NOTHING_LEFT, *command],
                cwd=folder,
                env=environment(TMPDIR=str(self._tmp), WANDB_MODE="disabled"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        """What it has said so far."""
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)

    async def end(self, within_s: float) -> int:
        """Wait until it has ended and return the exit code."""
        with anyio.move_on_after(within_s):
            while self.is_running:
                await anyio.sleep(0.05)
        assert not self.is_running, f"serve goes on after {within_s} s:\n{self.output[-4000:]}"
        return self._process.wait()

    def counter(self, name: str) -> int:
        """Return a figure of its last line, 0 if it is not there."""
        found = re.search(rf"\b{name} (\d+)", self.output.splitlines()[-1])
        return int(found[1]) if found else 0

    def left_files(self) -> list[str]:
        """Return what is left in its directory for temporary files."""
        shared = self._tmp / f"hermes_rl-{os.getuid()}"
        return [str(path) for path in self._tmp.rglob("*") if path != shared]


@asynccontextmanager
async def serving_process(folder: Path, *words: str) -> AsyncIterator[ServeProcess]:
    """Run ``serve`` with ``words`` in ``folder``; killed at the end if it still runs."""
    serve = ServeProcess(folder, *words)
    try:
        yield serve
    finally:
        serve.kill()
