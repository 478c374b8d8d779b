"""The two clouds, as tests see them: a real SDK and its loopback server; what differs by name."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

if os.environ.get("CI") != "true":  # there, everything must be
    pytest.importorskip("modal", reason="needs hermes_rl[modal]")
    pytest.importorskip("daytona", reason="needs hermes_rl[daytona]")

from grpclib import Status

from hermes_rl.backends import daytona, modal
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    CreateError,
    HermesRLError,
    ImageNotFound,
    SandboxError,
)
from hermes_rl.sandbox import Backend, BackendSettings, Sandbox, SandboxSpec
from hermes_rl.testing.daytona_server import DaytonaServer, Refusal
from hermes_rl.testing.daytona_storage import allow_loopback_storage
from hermes_rl.testing.loopback_cloud import CloudLog
from hermes_rl.testing.modal_server import ModalServer, refusal

ENGINE = Path(__file__).with_name("cloud_engine_process.py")
SPEC = SandboxSpec(image="hermes-test:latest")
FAST = {"creations_per_s": 200.0, "creation_burst": 20}


@dataclass(slots=True, frozen=True)
class Refused:
    """An answer to a creation that is documented, and our error for it."""

    answer: Any
    message: str
    error: type[HermesRLError]


@dataclass(slots=True, frozen=True)
class Cloud:
    """One of them.

    Attributes:
        name: Registered name of the backend.
        server: Its loopback server.
        create_backend: Makes the backend.
        module: Serves as a process.
        calls: What the server's log calls a creation, an outpost's start and a removal.
        make: The server's method that makes a sandbox.
        outposts: Process ids of the outposts, oldest first, where sandboxes are processes.
        too_fast: Refuses what comes too fast, for a second.
        refused: The documented refusals.
        secret: Variable with what authenticates us.
        secrets: All the variables that do.
    """

    name: str
    server: Callable[..., Any]
    create_backend: Callable[[BackendSettings], Backend]
    module: str
    calls: tuple[str, str, str]
    make: str
    outposts: Callable[[Any], list[int]]
    too_fast: Any
    refused: Sequence[Refused]
    secret: str
    secrets: Sequence[str] = field(default=())

    @asynccontextmanager
    async def serving(self, **options: Any) -> AsyncIterator[Any]:
        """Run the server in this process and point the SDK to it."""
        async with self.server(**options) as server:
            with server.environment(), allow_loopback_storage():
                yield server

    def backend(
        self, run_id: str = "test-run", *, starting: int | None = None, **options: Any
    ) -> Backend:
        """Return a backend that is not entered yet."""
        settings = BackendSettings(
            run_id=run_id, max_starting=starting, options={**FAST, **options}
        )
        return self.create_backend(settings)


def _modal_refused(status: Status, message: str, error: type[HermesRLError]) -> Refused:
    return Refused(refusal(status, message), message, error)


def _daytona_refused(status: int, message: str, error: type[HermesRLError]) -> Refused:
    return Refused(Refusal(status, message), message, error)


MODAL = Cloud(
    name="modal",
    server=ModalServer,
    create_backend=modal.create_backend,
    module="hermes_rl.testing.modal_server",
    calls=("SandboxCreateV2", "TaskExecStart", "SandboxTerminateV2"),
    make="create",
    outposts=lambda server: [
        each.process.pid for box in server.lives.alive for each in box.execs.values()
    ],
    too_fast=refusal(Status.RESOURCE_EXHAUSTED, "slow down", retry_after_s=1.0),
    refused=[
        _modal_refused(Status.UNAUTHENTICATED, "token revoked", ConfigError),
        _modal_refused(Status.PERMISSION_DENIED, "not your workspace", ConfigError),
        _modal_refused(Status.UNIMPLEMENTED, "no such method", ConfigError),
        _modal_refused(Status.RESOURCE_EXHAUSTED, "workspace limit of 100 containers", Capacity),
        _modal_refused(Status.INVALID_ARGUMENT, "cpu must be positive", CreateError),
        _modal_refused(Status.FAILED_PRECONDITION, "app is stopped", CreateError),
        _modal_refused(Status.ALREADY_EXISTS, "name is taken", CreateError),
        _modal_refused(Status.NOT_FOUND, "no such app", CreateError),
        _modal_refused(Status.UNAVAILABLE, "try later", BackendUnavailable),
        _modal_refused(Status.INTERNAL, "oops", BackendUnavailable),
        _modal_refused(Status.UNKNOWN, "oops", BackendUnavailable),
        _modal_refused(Status.DATA_LOSS, "oops", BackendUnavailable),
    ],
    secret="MODAL_TOKEN_SECRET",
    secrets=("MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"),
)
DAYTONA = Cloud(
    name="daytona",
    server=DaytonaServer,
    create_backend=daytona.create_backend,
    module="hermes_rl.testing.daytona_server",
    calls=("create", "terminal", "delete"),
    make="make",
    outposts=lambda server: [
        each.pid for box in server.lives.alive for each in box.terminals.values()
    ],
    too_fast=Refusal(429, "Too many requests", {"Retry-After": "1"}),
    refused=[
        _daytona_refused(400, "cpu must be positive", CreateError),
        _daytona_refused(400, "Total CPU limit exceeded", Capacity),
        _daytona_refused(401, "Invalid credentials", ConfigError),
        _daytona_refused(403, "Forbidden resource", ConfigError),
        _daytona_refused(403, "Organization quota reached", Capacity),
        _daytona_refused(404, "Snapshot base not found", ImageNotFound),
        _daytona_refused(409, "name is taken", CreateError),
        _daytona_refused(422, "no such region", CreateError),
        _daytona_refused(500, "oops", BackendUnavailable),
        _daytona_refused(502, "oops", BackendUnavailable),
        _daytona_refused(503, "try later", BackendUnavailable),
        _daytona_refused(504, "try later", BackendUnavailable),
    ],
    secret="DAYTONA_API_KEY",
    secrets=("DAYTONA_API_KEY",),
)
CLOUDS = [pytest.param(cloud, id=cloud.name) for cloud in (MODAL, DAYTONA)]


async def live_at_once(backend: Backend, count: int, *, spec: SandboxSpec = SPEC) -> list[int]:
    """Create sandboxes all at once, use each, close each; return what they printed, in order."""
    printed: list[int] = []

    async def live(number: int) -> None:
        sandbox = await backend.create(spec)
        try:
            result = await sandbox.exec(f"echo {number}", timeout_s=60)
            printed.append(int(result.text))
        finally:
            await sandbox.close()

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(live, number)
    return sorted(printed)


async def lost_in(sandbox: Sandbox, command: str = "sleep 120") -> SandboxError:
    """Run a command that ends with its sandbox; return the error."""
    with pytest.raises(SandboxError) as caught, anyio.fail_after(60):
        await sandbox.exec(command, timeout_s=120)
    return caught.value


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
    backend: str, *, leases_s: Sequence[float], environment: Mapping[str, str]
) -> AsyncIterator[float]:
    """Run an engine with a sandbox per lease and kill it; yields when that was, Unix time."""
    engine = subprocess.Popen(
        [sys.executable, str(ENGINE), backend, *map(str, leases_s)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert engine.stdout is not None
        assert await anyio.to_thread.run_sync(engine.stdout.readline) == "ready\n"
        killed_at_s = time.time()
        engine.kill()
        await anyio.to_thread.run_sync(engine.wait)  # until then a sweep takes it for alive
        yield killed_at_s
    finally:
        engine.kill()
        engine.wait()
        if engine.stdout is not None:
            engine.stdout.close()


@contextmanager
def server_process(
    cloud: Cloud, tmp_path: Path, *, port: int = 0
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a loopback cloud as a process; yields it and its port."""
    log = str(tmp_path / "log.jsonl")
    server = subprocess.Popen(
        [sys.executable, "-m", cloud.module, "--port", str(port), "--log", log],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        yield server, int(url.rpartition(":")[2].partition("/")[0])
    finally:
        if server.poll() is None:
            server.terminate()
        server.wait(timeout=30)
        if server.stdout is not None:
            server.stdout.close()
