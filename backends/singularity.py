"""The singularity backend: containers without a daemon, by Apptainer or SingularityCE.

For clusters and other machines where nobody may use Docker. A sandbox is one contained ``exec`` of
the runtime: own processes, own mounts, own /tmp and /dev, the image's files under a writable layer
of its own; nothing of the host's files but what the administrator binds into every container. The
outpost runs as process 1 over the mounted interpreter, so the image needs no Python and nothing
inside can kill or replace it. The network is the host's unless it is ``none``.

What a user may do depends on the machine, so it is tried when the backend is entered: who one is
inside, whether there can be no network, whether a container with limits starts (that they hold is
the runtime's word). What does not work there is a capability that is missing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import anyio
import anyio.to_thread

from hermes_rl.backends.local_directories import list_records, sweep
from hermes_rl.backends.runtime import Runtime, ensure_runtime
from hermes_rl.backends.session_backend import SessionBackend
from hermes_rl.backends.singularity_options import SingularityOptions, parse_options
from hermes_rl.backends.singularity_probe import Findings, probe
from hermes_rl.backends.singularity_program import find_program
from hermes_rl.backends.singularity_session import SingularitySession
from hermes_rl.errors import BackendUnavailable
from hermes_rl.sandbox import (
    BackendLimits,
    BackendSettings,
    Capability,
    Check,
    SandboxRecord,
)

__all__ = ["SingularityBackend", "create_backend"]

OPERATIONS_PER_CORE = 2
EVERYWHERE = frozenset(
    {Capability.ISOLATION, Capability.IMAGES, Capability.NETWORK_PUBLIC, Capability.PTY}
)
"""What every installation gives; the rest is tried."""
_WHY_NOT = {
    Capability.USERS: "whoever you are outside is the only user inside: give yourself ids in "
    "/etc/subuid for fakeroot, or run as root",
    Capability.MEMORY_LIMIT: "limits need cgroups v2 with systemd, or root",
    Capability.NETWORK_NONE: "the administrator allows no network namespaces",
}
"""Why a capability may be missing, for the message."""


def create_backend(settings: BackendSettings) -> SingularityBackend:
    """Return an unconnected backend.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    return SingularityBackend(settings, parse_options(settings.options))


class SingularityBackend(SessionBackend[SingularitySession]):
    """Makes sandboxes in containers; see the module's docstring."""

    name = "singularity"

    def __init__(self, settings: BackendSettings, options: SingularityOptions) -> None:
        operations = OPERATIONS_PER_CORE * (os.cpu_count() or 1)
        super().__init__(
            settings,
            capabilities=EVERYWHERE,
            limits=BackendLimits(starting=settings.max_starting or operations, removing=operations),
        )
        self._options = options

    async def _connect(self) -> SingularitySession:
        """Find the program, try what it may do here, start the helper processes.

        Raises:
            BackendUnavailable: There is no program, it is too old, or no container starts.
        """
        runtime = await ensure_runtime(self._settings.cache_dir)
        findings = await self._find_out(runtime)
        self.capabilities = findings.capabilities_with(self._options)
        session = SingularitySession(
            self._settings,
            self.limits,
            self.capabilities,
            runtime,
            findings=findings,
            options=self._options,
        )
        await session.open()
        return session

    async def _find_out(self, runtime: Runtime) -> Findings:
        def look() -> Findings:
            return probe(find_program(), runtime, self._options.user_mode)

        return await anyio.to_thread.run_sync(look, limiter=anyio.CapacityLimiter(1))

    async def sweep(self) -> Sequence[str]:
        """Remove the directories of engines that live no more; works unconnected too.

        Files of users that exist in containers only are removed when it is connected.
        """
        if self._session is not None:
            return await self._session.sweep()
        return await anyio.to_thread.run_sync(sweep, limiter=anyio.CapacityLimiter(1))

    async def records(self) -> Sequence[SandboxRecord]:
        """List what all engines on this machine have here; works unconnected too."""
        records = await anyio.to_thread.run_sync(list_records, limiter=anyio.CapacityLimiter(1))
        return [record for record in records if record.id.startswith(f"{self.name}-")]

    async def doctor(self) -> Sequence[Check]:
        """Check the prerequisites; works unconnected too."""
        try:
            program = await anyio.to_thread.run_sync(find_program, limiter=anyio.CapacityLimiter(1))
        except BackendUnavailable as error:
            return [Check("apptainer or singularity", ok=False, fix=str(error), optional=True)]
        installed = Check("apptainer or singularity", ok=True, detail=f"{program}, {program.path}")
        try:
            findings = await self._find_out(await ensure_runtime(self._settings.cache_dir))
        except BackendUnavailable as error:
            return [installed, Check("containers", ok=False, fix=str(error))]
        how = " ".join(findings.confinement.user) or "no options"
        detail = f"started with {how}, writable by {findings.confinement.writable}"
        return [installed, Check("containers", ok=True, detail=detail), *_abilities(findings)]


def _abilities(findings: Findings) -> list[Check]:
    """Name what tasks may need and this machine does not give; that is no fault."""
    optional = (Capability.USERS, Capability.NETWORK_NONE, Capability.MEMORY_LIMIT)
    missing = [each for each in optional if each not in findings.capabilities]
    return [
        Check(f"containers: {each}", ok=True, detail=f"not here: {_WHY_NOT[each]}")
        for each in missing
    ]
