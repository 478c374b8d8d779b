"""The local backend while it is connected: its helper processes and its sandboxes."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from hermes_rl.backends.admission import Admission
from hermes_rl.backends.bubblewrap import bubblewrap_message
from hermes_rl.backends.host_room import cannot_start
from hermes_rl.backends.local_directories import (
    BackendDirectory,
    SandboxDirectory,
    remove_tree,
    sweep,
)
from hermes_rl.backends.local_nursery import NurseryClient
from hermes_rl.backends.local_sandbox import LocalSandbox
from hermes_rl.backends.outpost.transport import SocketTransport
from hermes_rl.backends.regular_sweep import RegularSweep
from hermes_rl.backends.runtime import Runtime, kept_runtime
from hermes_rl.backends.start_deadline import coming_up
from hermes_rl.errors import CreateError
from hermes_rl.sandbox import BackendLimits, BackendSettings, Capability, SandboxSpec

__all__ = ["LocalSession"]

MAX_HELPERS = 4
FILE_THREADS = 8
KEPT_ENVIRONMENT = ("PATH", "LANG", "LANGUAGE", "TERM", "TZ", "USER", "LOGNAME", "SHELL")
"""Of the engine's environment, what commands get besides LC_*. Keys and tokens are not in it."""

T = TypeVar("T")


class LocalSession:
    """Opened and closed in one task: it holds the task group of every sandbox's reader."""

    backend = "local"
    """Name of the backend, for errors and as the beginning of ids."""

    def __init__(
        self,
        settings: BackendSettings,
        limits: BackendLimits,
        capabilities: frozenset[Capability],
        runtime: Runtime | None,
    ) -> None:
        self._runtime = runtime
        self._network = settings.network or "public"
        self._run_id = settings.run_id
        self._capabilities = capabilities
        self._threads = anyio.CapacityLimiter(FILE_THREADS)
        self._transfers = anyio.Semaphore(limits.transfers or 1)
        self._admission = Admission(starting=limits.starting or 1, removing=limits.removing or 1)
        self._mending = anyio.Lock()
        self._nurseries: list[NurseryClient] = []
        self._sandboxes: dict[str, LocalSandbox] = {}
        self._sweeps = RegularSweep(self._remove_abandoned, backend=self.backend)
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Make the directory and start the helpers.

        Raises:
            BackendUnavailable: Either is impossible.
        """
        try:
            self._directory: BackendDirectory = await self._in_thread(
                lambda: BackendDirectory.make(self._run_id)
            )
            self._stack.push_async_callback(self._in_thread, self._directory.remove)
            self._tasks: TaskGroup = await self._stack.enter_async_context(
                anyio.create_task_group()
            )
            self._stack.callback(self._sweeps.stop)
            self._tasks.start_soon(self._sweeps.run)
            self._stack.push_async_callback(self._close_nurseries)
            for _ in range(min(MAX_HELPERS, os.cpu_count() or 1)):
                await self._start_nursery()
        except BaseException:
            await self._stack.aclose()  # no shield around it: it leaves a task group
            raise

    async def close(self) -> None:
        """Close every sandbox, end the helpers, remove the directory."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as closing:
                for sandbox in list(self._sandboxes.values()):
                    closing.start_soon(sandbox.close)
        await self._stack.aclose()

    async def _in_thread(self, function: Callable[[], T]) -> T:
        """Run ``function`` to its end, cancelled or not: what it makes must not be lost."""
        results: list[T] = []
        with anyio.CancelScope(shield=True):
            results.append(await anyio.to_thread.run_sync(function, limiter=self._threads))
        return results[0]

    async def sweep(self) -> list[str]:
        """Remove what engines left that live no more; return all that was since last asked.

        Raises:
            BackendUnavailable: The temporary directory cannot be used.
        """
        return await self._sweeps.now()

    async def _remove_abandoned(self) -> list[str]:
        return await self._in_thread(sweep)

    # Helpers

    async def _start_nursery(self) -> None:
        nursery = await NurseryClient.start(
            self._directory.log, threads=self._threads, backend=self.backend
        )
        self._nurseries.append(nursery)
        self._tasks.start_soon(nursery.run)

    async def _close_nurseries(self) -> None:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as closing:
                for nursery in self._nurseries:
                    closing.start_soon(nursery.aclose)

    async def _pick_nursery(self) -> NurseryClient:
        """Return the helper with the fewest sandboxes; replace those that are gone."""
        async with self._mending:
            for nursery in [each for each in self._nurseries if each.lost.is_set()]:
                self._nurseries.remove(nursery)
                await nursery.aclose()
                await self._start_nursery()
        return min(self._nurseries, key=lambda each: len(each.keepers))

    # Sandboxes

    async def create(
        self,
        spec: SandboxSpec,
        *,
        prepare: Callable[[LocalSandbox], Awaitable[None]] | None = None,
    ) -> LocalSandbox:
        """Start a sandbox; a cancelled caller leaves nothing.

        Args:
            spec: What it must be.
            prepare: Called when its outpost was started, before the startup command is.

        Raises:
            CreateError: It did not come up, or did not become healthy in time.
        """
        async with self._admission.start():
            deadline_s = anyio.current_time() + spec.start_timeout_s
            sandbox = await self._boot(spec)
        async with coming_up(sandbox, spec, backend=self.backend, deadline_s=deadline_s):
            if prepare is not None:
                await prepare(sandbox)
            await sandbox.ready(spec, timeout_s=spec.start_timeout_s)
        return sandbox

    async def _boot(self, spec: SandboxSpec) -> LocalSandbox:
        """Make the directories and the keeper; its first word is not yet waited for."""
        id = f"{self.backend}-{uuid.uuid4().hex[:10]}"
        if self._runtime is not None:
            self._runtime = await kept_runtime(self._runtime)
        nursery = await self._pick_nursery()
        directory = self._directory.sandbox(id)
        try:
            await self._in_thread(directory.make)
            message = self._message(spec, directory)
            ours, theirs = socket.socketpair()
        except BaseException as error:
            await self._in_thread(lambda: remove_tree(directory.top))
            if isinstance(error, OSError):
                raise cannot_start(error, backend=self.backend) from error
            raise
        sandbox = self._sandbox(id, nursery, directory, await SocketTransport.of(ours))
        try:
            with theirs:
                await nursery.adopt(id, message, theirs)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _message(self, spec: SandboxSpec, directory: SandboxDirectory) -> dict[str, object]:
        if self._runtime is None:
            return keeper_message(spec, directory)
        return bubblewrap_message(
            spec,
            directory,
            self._runtime,
            network=spec.network or self._network,
            inherited=_host_environment(),
        )

    def _sandbox(
        self,
        id: str,
        nursery: NurseryClient,
        directory: SandboxDirectory,
        transport: SocketTransport,
    ) -> LocalSandbox:
        sandbox = self._made(
            directory,
            id=id,
            nursery=nursery,
            admission=self._admission,
            transport=transport,
            capabilities=self._capabilities - {Capability.BASH},
            transfers=self._transfers,
            threads=self._threads,
            forget=lambda id: self._sandboxes.pop(id, None),
        )
        self._sandboxes[id] = sandbox
        self._tasks.start_soon(sandbox.serve)
        return sandbox

    def _made(self, directory: SandboxDirectory, **options: Any) -> LocalSandbox:
        return LocalSandbox(directory=directory, **options)


def keeper_message(spec: SandboxSpec, directory: SandboxDirectory) -> dict[str, object]:
    """Return what a helper needs to know about a sandbox.

    Raises:
        CreateError: The working directory does not exist.
    """
    home = directory.home
    cwd = home if spec.workdir is None else Path(home, spec.workdir.replace("~", str(home), 1))
    if spec.workdir is not None and not Path(spec.workdir).is_absolute():
        cwd.mkdir(parents=True, exist_ok=True)
    if not cwd.is_dir():
        raise CreateError(
            f"workdir {spec.workdir!r} does not exist on this machine; a relative one is made "
            "in the sandbox's home.",
            backend="local",
        )
    environment = {**_host_environment(), "HOME": str(home), "TMPDIR": str(directory.tmp)}
    environment.update(spec.env)
    return {
        "cwd": str(cwd),
        "options": {
            "env": [f"{name}={value}" for name, value in environment.items()],
            "state-dir": [str(directory.state)],
            "remove": [str(directory.top)],
            "lease-s": [str(spec.lease_s)],
        },
    }


def _host_environment() -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_ENVIRONMENT or name.startswith("LC_")
    }
    return {"LANG": "C.UTF-8", "TERM": "dumb", **kept}
