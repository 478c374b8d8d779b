"""What the tests of both clouds share: many at once, killed engines, servers as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_rl.sandbox import Backend, SandboxSpec
from hermes_rl.testing.loopback_cloud import CloudLog

ENGINE = Path(__file__).with_name("cloud_engine_process.py")
SPEC = SandboxSpec(image="hermes-test:latest")


async def live_at_once(backend: Backend, count: int, *, spec: SandboxSpec = SPEC) -> list[str]:
    """Create sandboxes all at once, use each, close each; return what they printed."""
    printed: list[str] = []

    async def live(number: int) -> None:
        sandbox = await backend.create(spec)
        try:
            result = await sandbox.exec(f"echo {number}", timeout_s=60)
            printed.append(result.text.strip())
        finally:
            await sandbox.close()

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(live, number)
    return printed


def most_at_once(log: CloudLog, call: str) -> int:
    """Return the most sandboxes that were being made at one time."""
    changes = [(at_s, 1) for at_s in log.times(call)] + [
        (at_s, -1) for at_s in log.times("created")
    ]
    running = highest = 0
    for _, change in sorted(changes):
        running += change
        highest = max(highest, running)
    return highest


@asynccontextmanager
async def killed_engine(
    backend: str, *, lease_s: float, count: int, environment: dict[str, str]
) -> AsyncIterator[float]:
    """Run an engine with sandboxes and kill it; yields when that was, Unix time."""
    engine = subprocess.Popen(
        [sys.executable, str(ENGINE), backend, str(lease_s), str(count)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert engine.stdout is not None
        assert await anyio.to_thread.run_sync(engine.stdout.readline) == "ready\n"
        engine.send_signal(signal.SIGKILL)
        yield time.time()
    finally:
        engine.kill()
        engine.wait()
        if engine.stdout is not None:
            engine.stdout.close()


@contextmanager
def server_process(
    module: str, tmp_path: Path, *, port: int = 0
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a loopback cloud as a process; yields it and its URL."""
    server = subprocess.Popen(
        [sys.executable, "-m", module, "--port", str(port), "--log", str(tmp_path / "log.jsonl")],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        yield server, server.stdout.readline().strip()
    finally:
        if server.poll() is None:
            server.terminate()
        server.wait(timeout=30)
        if server.stdout is not None:
            server.stdout.close()
