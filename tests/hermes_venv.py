"""A virtual environment that holds hermes-agent and nothing of ours, made once per host.

hermes-agent pins two dozen packages by exact version, so it is never installed beside the
development tools: worker processes use the interpreter of this environment, as a user's may.
``HERMES_VENV=DIR`` names one that is there already.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENT = "hermes-agent==0.19.0"
INSTALL_S = 600


def hermes_interpreter() -> Path:
    """Return the interpreter, building its environment at first use.

    Raises:
        RuntimeError: It cannot be built; says what pip said.
    """
    named = os.environ.get("HERMES_VENV")
    if named:
        return Path(named, "bin/python")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hermes_rl")
    key = hashlib.sha256(f"{REQUIREMENT}\0{sys.version}\0{sys.executable}".encode()).hexdigest()
    venv = cache / "test-venvs" / f"hermes-agent-{key[:12]}"
    venv.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{venv}.lock", "w") as lock:  # Two test runs must not build it at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (venv / "complete").exists():
            _build(venv)
    return venv / "bin/python"


def _build(venv: Path) -> None:
    shutil.rmtree(venv, ignore_errors=True)
    _run(sys.executable, "-m", "venv", str(venv))
    pip = (str(venv / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    _run(*pip, REQUIREMENT)
    (venv / "complete").touch()


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
