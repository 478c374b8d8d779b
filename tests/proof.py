"""Logs of measured runs: what was measured where, at which commit, by which command.

``make perf HERMES_PROOF=docs/proof`` (or scale, or soak) writes what a test passes to its ``proof``
fixture into ``docs/proof/NAME.txt``, where NAME is the test module's ``PROOF``. A log is begun anew
by each run and written line by line, so that a run that dies leaves what it had. How each test
ended and how long it took is added. Without HERMES_PROOF lines are only printed.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Proof", "proof", "pytest_runtest_makereport"]

ROOT = Path(__file__).parents[1]
SIZES = ("SCALE_", "SOAK_", "HERMES_PEERS")
"""Variables that begin so change what is measured; they are part of the command."""
MAX_REASON = 200
OUTCOME = pytest.StashKey[str]()


class Proof:
    """One log; lines are printed as well."""

    def __init__(self, path: Path | None) -> None:
        """Begin a log in ``path``, or none."""
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(header())

    def __call__(self, text: str) -> None:
        """Add a line, or several."""
        print(f"\n{text}", end="", flush=True)
        self.record(text)

    def record(self, text: str) -> None:
        """Add what has been printed already."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(f"{text}\n")


_begun: dict[str, Proof] = {}


@pytest.fixture
def proof(request: pytest.FixtureRequest) -> Iterator[Proof]:
    """Returns the log of the test's module; says at the end how the test ended."""
    name = request.module.PROOF
    folder = os.environ.get("HERMES_PROOF")
    if name not in _begun:
        _begun[name] = Proof(Path(folder).resolve() / f"{name}.txt" if folder else None)
    began_s = time.monotonic()
    yield _begun[name]
    outcome = request.node.stash.get(OUTCOME, "not run")
    _begun[name].record(f"{request.node.name}: {outcome}, {time.monotonic() - began_s:.0f} s\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep how a test ended for its ``proof``."""
    report = yield
    if report.when == "call":
        said = "" if call.excinfo is None else " ".join(call.excinfo.exconly().split())
        reason = f": {said[:MAX_REASON]}" if said else ""
        item.stash[OUTCOME] = report.outcome + reason
    return report


def header() -> str:
    """Machine, time, commit and command."""
    sizes = [f"{k}={v}" for k, v in sorted(os.environ.items()) if k.startswith(SIZES)]
    words = [*sizes, "python -m pytest", *sys.argv[1:]]
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"machine: {machine()}\n"
        f"begun:   {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, load {load}\n"
        f"commit:  {commit()}\n"
        f"command: {' '.join(words)}\n\n"
    )


def machine() -> str:
    """Cores, memory, kernel and versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [f"{os.cpu_count()} cores, {memory:.0f} GiB", f"Linux {platform.release()}"]
    parts.append(f"Python {platform.python_version()}")
    if shutil.which("docker"):
        daemon = _said("docker", "version", "--format", "{{.Server.Version}}")
        parts.append(f"dockerd {daemon}" if daemon else "no dockerd")
    return ", ".join(parts)


def commit() -> str:
    """The commit, marked if the tree differs from it."""
    differs = _said("git", "status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return _said("git", "rev-parse", "--short", "HEAD") + (" and changes" if differs else "")


def _said(*words: str) -> str:
    done: Any = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    return str(done.stdout).strip()
