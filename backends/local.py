"""The local backend: sandboxes that are directories and processes on this machine.

It does **not** isolate. A command runs as the user that runs the engine and can read and change
whatever that user can; there are no limits on memory, processes or network. What each sandbox
has of its own is a home directory (also the working directory), a TMPDIR and a scrubbed
environment, and nothing of it outlives the sandbox: processes, however they detach themselves,
are killed and the directories removed at ``close()``, and also when the engine is killed.

Commands go through a few helper processes that fork one small keeper (an outpost) per sandbox;
the engine itself never starts a process per command.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Sequence

import anyio
import anyio.to_thread

from hermes_rl.backends.bubblewrap import check_bubblewrap
from hermes_rl.backends.local_directories import BackendDirectory, list_records, sweep
from hermes_rl.backends.local_options import LocalOptions, parse_options
from hermes_rl.backends.local_session import LocalSession
from hermes_rl.backends.runtime import Runtime, ensure_runtime
from hermes_rl.backends.session_backend import SessionBackend
from hermes_rl.errors import BackendUnavailable
from hermes_rl.sandbox import (
    BackendLimits,
    BackendSettings,
    Capability,
    Check,
    SandboxRecord,
)

__all__ = ["LocalBackend", "create_backend"]

logger = logging.getLogger(__name__)

OPERATIONS_PER_CORE = 2
WARNING = (
    "The local backend does not isolate: commands of the agent run as you, on this machine, with "
    "your files and your network. Use the docker backend, or local_isolation: bwrap, for models "
    "and tasks you do not trust."
)


def create_backend(settings: BackendSettings) -> LocalBackend:
    """Return an unconnected backend.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    return LocalBackend(settings, parse_options(settings.options))


class LocalBackend(SessionBackend[LocalSession]):
    """Makes sandboxes here; see the module's docstring for what they are not."""

    name = "local"
    shows_later = frozenset()

    def __init__(self, settings: BackendSettings, options: LocalOptions) -> None:
        operations = OPERATIONS_PER_CORE * (os.cpu_count() or 1)
        super().__init__(
            settings,
            capabilities=_capabilities(isolated=options.local_isolation == "bwrap"),
            limits=BackendLimits(starting=settings.max_starting or operations, removing=operations),
        )
        self._options = options

    async def _connect(self) -> LocalSession:
        """Start the helper processes; warn if nothing isolates.

        Raises:
            BackendUnavailable: No process can be started, no directory made, or bubblewrap was
                asked for and does not work here.
        """
        runtime = await self._isolation()
        self.capabilities = _capabilities(isolated=runtime is not None)
        session = LocalSession(self._settings, self.limits, self.capabilities, runtime)
        await session.open()
        return session

    async def _isolation(self) -> Runtime | None:
        """Return the interpreter to mount into bubblewrap, None if there is no isolation."""
        if self._options.local_isolation == "none":
            logger.warning(WARNING)
            return None
        try:
            runtime = await ensure_runtime(self._settings.cache_dir)
            await anyio.to_thread.run_sync(
                check_bubblewrap, runtime, limiter=anyio.CapacityLimiter(1)
            )
        except BackendUnavailable as error:
            if self._options.local_isolation == "bwrap":
                raise
            logger.warning("%s (%s)", WARNING, error)
            return None
        return runtime

    async def sweep(self) -> Sequence[str]:
        """Remove the directories of engines that live no more; works unconnected too."""
        if self._session is not None:
            return await self._session.sweep()
        return await anyio.to_thread.run_sync(sweep, limiter=anyio.CapacityLimiter(1))

    async def records(self) -> Sequence[SandboxRecord]:
        """List what all engines on this machine have here; works unconnected too."""
        records = await anyio.to_thread.run_sync(list_records, limiter=anyio.CapacityLimiter(1))
        return [record for record in records if record.id.startswith(f"{self.name}-")]

    async def _check_bwrap(self) -> Check:
        try:
            runtime = await ensure_runtime(self._settings.cache_dir)
            await anyio.to_thread.run_sync(
                check_bubblewrap, runtime, limiter=anyio.CapacityLimiter(1)
            )
        except BackendUnavailable as error:
            unasked = self._options.local_isolation == "none"
            return Check("bubblewrap", ok=False, fix=str(error), optional=unasked)
        return Check("bubblewrap", ok=True)

    async def doctor(self) -> Sequence[Check]:
        """Check the prerequisites; works unconnected too."""
        bash = shutil.which("bash")
        return [
            await self._check_bwrap(),
            Check(
                "bash",
                ok=bash is not None,
                detail=bash or "",
                fix=""
                if bash
                else "Install bash; without it functions and aliases do not persist.",
            ),
            await anyio.to_thread.run_sync(_check_tmpdir, limiter=anyio.CapacityLimiter(1)),
        ]


def _check_tmpdir() -> Check:
    """Do what every engine begins with: only so is it known that it works."""
    name = "temporary directory"
    try:
        BackendDirectory.make("doctor").remove()
    except BackendUnavailable as error:
        return Check(name, ok=False, detail=str(error), fix=str(error))
    return Check(name, ok=True, detail=tempfile.gettempdir())


def _capabilities(*, isolated: bool) -> frozenset[Capability]:
    capabilities = {Capability.NETWORK_PUBLIC, Capability.PTY}
    if shutil.which("bash") is not None:
        capabilities.add(Capability.BASH)
    if isolated:
        capabilities |= {Capability.ISOLATION, Capability.NETWORK_NONE}
    return frozenset(capabilities)
