"""The docker backend: one container per sandbox, the outpost as its main process.

Life of a container: created with labels that name its run, owner and deadline; attached to;
started. Its main process ends when our end of the stream closes, whatever becomes of us, and the
daemon removes it then. What a crash leaves in the state ``created`` or ``paused``, the next sweep
removes: at start, every minute, and by ``hermes_rl sandboxes clean``.

Everything that needs aiodocker is imported when the backend is entered.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread

from hermes_rl.backends.capability_check import check_capabilities
from hermes_rl.backends.docker_options import DockerOptions, parse_options
from hermes_rl.errors import ConfigError, MissingExtra
from hermes_rl.sandbox import (
    BackendLimits,
    BackendSettings,
    Capability,
    Check,
    SandboxRecord,
    SandboxSpec,
)

if TYPE_CHECKING:
    from hermes_rl.backends.docker_sandbox import DockerSandbox
    from hermes_rl.backends.docker_session import DockerSession

__all__ = ["DockerBackend", "create_backend"]

CAPABILITIES = frozenset(Capability) - {Capability.BASH, Capability.GPU}
"""BASH is the image's to have."""


def create_backend(settings: BackendSettings) -> DockerBackend:
    """Return an unconnected backend.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    return DockerBackend(settings, parse_options(settings.options))


class DockerBackend:
    """A :class:`hermes_rl.sandbox.Backend` over one Docker daemon.

    ``capabilities`` and ``limits`` are the daemon's once the backend is entered.
    """

    name = "docker"

    def __init__(self, settings: BackendSettings, options: DockerOptions) -> None:
        self.capabilities: frozenset[Capability] = CAPABILITIES
        self.limits = BackendLimits(starting=settings.max_starting)
        self._settings = settings
        self._options = options
        self._session: DockerSession | None = None

    async def __aenter__(self) -> Self:
        """Connect to the daemon and sweep what earlier runs left there.

        Raises:
            BackendUnavailable: There is no daemon, or it does not answer; says how to fix it.
            MissingExtra: aiodocker is not installed.
        """
        await _import("docker_session")
        from hermes_rl.backends.docker_session import DockerSession

        session = DockerSession(self._settings, self._options, supported=CAPABILITIES)
        await session.open()
        self._session = session
        self.capabilities, self.limits = session.capabilities, session.limits
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove every sandbox of this run that is still there, then disconnect."""
        session, self._session = self._connected(), None
        await session.close()

    def _connected(self) -> DockerSession:
        if self._session is None:
            raise ConfigError("The docker backend is not connected: use it in 'async with'.")
        return self._session

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """Start a sandbox; see :meth:`hermes_rl.sandbox.Backend.create`."""
        session = self._connected()
        check_capabilities(
            spec,
            self.capabilities | {Capability.BASH},
            backend=self.name,
            network=self._settings.network,
        )
        return await session.create(spec)

    async def sweep(self) -> Sequence[str]:
        """Remove what dead owners or passed deadlines left behind; ids, with those of the start."""
        return await self._connected().sweep()

    async def records(self) -> Sequence[SandboxRecord]:
        """List the sandboxes of all runs on this daemon, in every state; works unconnected too.

        Raises:
            BackendUnavailable: There is no daemon, or it does not answer.
            MissingExtra: aiodocker is not installed.
        """
        await _import("docker_doctor")
        from hermes_rl.backends.docker_doctor import list_records

        return await list_records()

    async def doctor(self) -> Sequence[Check]:
        """Check the prerequisites; works unconnected too."""
        try:
            await _import("docker_doctor")
        except MissingExtra:
            fix = "pip install 'hermes_rl[docker]'"
            return [Check("aiodocker", ok=False, detail="not installed", fix=fix, optional=True)]
        from hermes_rl.backends.docker_doctor import examine

        return await examine(self._settings, self._options)


async def _import(module: str) -> None:
    """Import what needs aiodocker, 0.1 s of work the first time, without holding the event loop.

    Raises:
        MissingExtra: aiodocker is not installed.
    """
    name, limiter = f"hermes_rl.backends.{module}", anyio.CapacityLimiter(1)
    try:
        await anyio.to_thread.run_sync(importlib.import_module, name, limiter=limiter)
    except ModuleNotFoundError as error:
        raise MissingExtra.of("The docker backend", "docker") from error
