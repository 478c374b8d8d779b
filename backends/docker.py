"""The docker backend: one container per sandbox, the outpost as its main process.

Life of a container: created with labels that name its run, owner and deadline; attached to;
started. Its main process ends when our end of the stream closes, whatever becomes of us, and the
daemon removes it then. What a crash leaves in the state ``created`` or ``paused``, the next sweep
removes: at start, every minute, and by ``hermes_rl sandboxes clean``.

Everything that needs aiodocker is imported when the backend is entered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes_rl.backends.docker_options import DockerOptions, parse_options
from hermes_rl.backends.extra import import_for
from hermes_rl.backends.session_backend import SessionBackend
from hermes_rl.errors import MissingExtra
from hermes_rl.sandbox import (
    BackendLimits,
    BackendSettings,
    Capability,
    Check,
    SandboxRecord,
)

if TYPE_CHECKING:
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


class DockerBackend(SessionBackend["DockerSession"]):
    """A :class:`hermes_rl.sandbox.Backend` over one Docker daemon.

    ``capabilities`` and ``limits`` are the daemon's once the backend is entered.
    """

    name = "docker"

    def __init__(self, settings: BackendSettings, options: DockerOptions) -> None:
        super().__init__(
            settings,
            capabilities=CAPABILITIES,
            limits=BackendLimits(starting=settings.max_starting),
        )
        self._options = options

    async def _connect(self) -> DockerSession:
        """Connect to the daemon and sweep what earlier runs left there.

        Raises:
            BackendUnavailable: There is no daemon, or it does not answer; says how to fix it.
            MissingExtra: aiodocker is not installed.
        """
        await _import("docker_session")
        from hermes_rl.backends.docker_session import DockerSession

        session = DockerSession(self._settings, self._options, supported=CAPABILITIES)
        await session.open()
        self.capabilities, self.limits = session.capabilities, session.limits
        return session

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
    """Import what needs aiodocker."""
    await import_for("docker", f"hermes_rl.backends.{module}", extra="docker")
