"""A backend in one file: copy it, change it, register it.

A sandbox here is a directory and whatever ``prefix`` starts commands in: nothing at all, or
``unshare --pid --fork --mount-proc --kill-child``, ``nsenter -t 4711 -a``, ``podman exec -i box``.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from hermes_rl.backends.capability_check import check_capabilities
from hermes_rl.backends.outpost.sandbox import OutpostSandbox
from hermes_rl.backends.outpost.start import OutpostStart, outpost_options
from hermes_rl.backends.outpost.transport import SocketTransport
from hermes_rl.errors import ConfigError, CreateError
from hermes_rl.sandbox import BackendLimits, BackendSettings, Capability, Check, SandboxSpec

NAME = "prefix"
CAPABILITIES = frozenset({Capability.NETWORK_PUBLIC})
"""Only what the conformance suite has proved; tasks that need more are skipped by name."""


class PrefixSandbox(OutpostSandbox):
    """One process that runs our supervisor, and a directory that is its home."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        super().__init__(
            id=uuid.uuid4().hex[:12],
            backend=NAME,
            transport=SocketTransport(process.stdout, process.stdin),
            capabilities=CAPABILITIES,
        )
        self._process = process
        self._home = home

    async def start(self, begin: bytes, spec: SandboxSpec) -> None:
        """Send the supervisor its source and wait until it and the spec's services are up."""
        await self._transport.send(begin)
        await self.ready(spec, timeout_s=spec.start_timeout_s)

    async def _remove(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await anyio.to_thread.run_sync(shutil.rmtree, self._home, True, limiter=self._threads)


class PrefixBackend:
    """Implements :class:`hermes_rl.sandbox.Backend`."""

    name = NAME
    capabilities = CAPABILITIES
    limits = BackendLimits(starting=8)

    def __init__(self, settings: BackendSettings) -> None:
        prefix = settings.options.get("prefix", [])
        if not isinstance(prefix, list) or not all(isinstance(word, str) for word in prefix):
            raise ConfigError("backend_options: prefix must be a list of words, as in ['nice'].")
        self._prefix: list[str] = prefix
        self._network = settings.network
        self._starting = anyio.Semaphore(settings.max_starting or 8)
        self._sandboxes: set[PrefixSandbox] = set()
        self._tasks: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._tasks is not None
        for sandbox in list(self._sandboxes):
            await sandbox.close()
        await self._tasks.__aexit__(exc_type, exc, traceback)

    async def create(self, spec: SandboxSpec) -> PrefixSandbox:
        """Start a sandbox; see :meth:`hermes_rl.sandbox.Backend.create`."""
        assert self._tasks is not None
        known = self.capabilities | {Capability.BASH}
        check_capabilities(spec, known, backend=self.name, network=self._network)
        async with self._starting:
            home = Path(tempfile.mkdtemp(prefix="hermes-prefix-"))
            options = outpost_options(lease_s=spec.lease_s, env={"HOME": str(home), **spec.env})
            begin = OutpostStart.of(options, workdir=spec.workdir or str(home))
            try:
                sandbox = PrefixSandbox(await self._run(begin), home)
            except BaseException:
                shutil.rmtree(home, ignore_errors=True)
                raise
            self._sandboxes.add(sandbox)
            self._tasks.start_soon(self._serve, sandbox)
            try:
                await sandbox.start(begin.preamble, spec)
            except BaseException:
                await sandbox.close()
                raise
        return sandbox

    async def _run(self, begin: OutpostStart) -> asyncio.subprocess.Process:
        words = [*self._prefix, *begin.argv()]
        try:
            return await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PATH": "/usr/local/bin:/usr/bin:/bin"},  # not ours: it may hold keys
                start_new_session=True,  # Ctrl-C is for the engine, which closes its sandboxes
            )
        except OSError as error:
            raise CreateError(f"Cannot run {words[0]}: {error}.", backend=self.name) from error

    async def _serve(self, sandbox: PrefixSandbox) -> None:
        await sandbox.serve()
        await sandbox.close()
        self._sandboxes.discard(sandbox)

    async def sweep(self) -> Sequence[str]:
        """Find nothing: the supervisor ends with its pipe, so dead engines leave no process."""
        return []

    async def doctor(self) -> Sequence[Check]:
        """Say whether the prefix is there."""
        program = self._prefix[0] if self._prefix else "python3"
        found = shutil.which(program) is not None
        return [Check(program, ok=found, fix=f"Install {program}, or choose another prefix.")]


def create_backend(settings: BackendSettings) -> PrefixBackend:
    """What the entry point names."""
    return PrefixBackend(settings)
