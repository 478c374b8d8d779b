"""What the Docker tests share: settings of a run, and what the daemon says exists."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

from hermes_rl.backends.ownership import RUN_LABEL
from hermes_rl.sandbox import BackendSettings, SandboxSpec

TEST_IMAGE = "hermes-test:latest"
BARE_IMAGE = "hermes-bare:latest"
EMPTY_IMAGE = "hermes-empty:latest"
MEMORY_MB = 256


def run_settings(cache_dir: Path, **options: Any) -> BackendSettings:
    """Settings of a run of its own."""
    return BackendSettings(
        run_id=f"test-{uuid.uuid4().hex[:12]}", cache_dir=cache_dir, options=options
    )


def box(**fields: Any) -> SandboxSpec:
    """A small spec."""
    return SandboxSpec(**{"image": TEST_IMAGE, "memory_mb": MEMORY_MB, "network": "none", **fields})


def docker(*arguments: str) -> str:
    """Run the docker command."""
    done = subprocess.run(
        ["docker", *arguments], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def remove_volume(name: str, *, limit_s: float = 60.0) -> None:
    """Remove a volume whose containers are gone.

    The daemon does not know a container any more a moment before it lets go of its volumes.
    """
    deadline_s = time.monotonic() + limit_s
    while True:
        command = ["docker", "volume", "rm", "--force", name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            return
        assert time.monotonic() < deadline_s, done.stderr
        time.sleep(0.2)


def containers_of(run_id: str) -> dict[str, str]:
    """Containers of a run in every state: short id -> state."""
    lines = docker("ps", "-a", "--filter", f"label={RUN_LABEL}={run_id}", "--format", "{{json .}}")
    entries = [json.loads(line) for line in lines.splitlines()]
    return {entry["ID"]: entry["State"] for entry in entries}


async def gone_within(run_id: str, limit_s: float) -> bool:
    """Wait until a run has no container any more."""
    deadline_s = asyncio.get_running_loop().time() + limit_s
    while await asyncio.to_thread(containers_of, run_id):
        if asyncio.get_running_loop().time() > deadline_s:
            return False
        await asyncio.sleep(0.1)
    return True
