"""What the tests of ``evaluate`` share: the command as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hermes_rl.runlog.reader import RecordedRun, read_run

DATA = Path(__file__).parents[1] / "data"
SLOW = f"{DATA / 'slow_tasks.py'}:SlowTasks"
TIMEOUT_S = 90.0


def environment(**extra: str) -> dict[str, str]:
    """The environment of a user who has set nothing."""
    dropped = ("TERMINAL_ENV", "OPENAI_API_KEY", "OPENROUTER_API_KEY")
    return {k: v for k, v in os.environ.items() if k not in dropped} | extra


def run(
    cwd: Path, *words: str, limit_s: float = TIMEOUT_S, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "hermes_rl", *words],
        cwd=cwd,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


def start(cwd: Path, *words: str, stdio: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a command in a process group of its own, as a terminal would."""
    return subprocess.Popen(
        [sys.executable, "-m", "hermes_rl", *words],
        cwd=cwd,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=stdio,
        stderr=stdio,
        text=True,
        start_new_session=True,
    )


def wait_for_records(process: subprocess.Popen[str], run_dir: Path, count: int) -> None:
    """Wait until so many rollouts are on disk."""
    results = run_dir / "results.jsonl"
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if results.exists() and len(read_run(run_dir).records) >= count:
            return
        if process.poll() is not None:
            raise AssertionError(f"it ended with {process.returncode}: {process.communicate()}")
        time.sleep(0.05)
    raise AssertionError("no records in time")


def interrupt(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to the whole process group, as Ctrl-C in a terminal does."""
    os.killpg(process.pid, number)


def end(process: subprocess.Popen[str], within_s: float) -> tuple[int, str, str]:
    """Wait for the end; returns exit code, stdout and stderr."""
    stdout, stderr = process.communicate(timeout=within_s)
    return process.returncode, stdout, stderr


def processes_with(words: Sequence[str]) -> list[str]:
    """Command lines of live processes that contain all of ``words``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            if all(word in line for word in words):
                found.append(line)
    return found


def outcomes(recorded: RecordedRun) -> dict[tuple[str, int], tuple[str, float | None]]:
    """What a run says of each rollout."""
    return {key: (r.status, r.reward) for key, r in sorted(recorded.records.items())}
