"""What every backend of ours does alike: it works through a session while it is entered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from hermes_rl.backends.capability_check import check_capabilities
from hermes_rl.errors import ConfigError
from hermes_rl.sandbox import (
    BackendLimits,
    BackendSettings,
    Capability,
    Check,
    Sandbox,
    SandboxRecord,
    SandboxSpec,
)

__all__ = ["Session", "SessionBackend"]


class Session(Protocol):
    """A connected backend: opened and closed in one task, it owns the sandboxes made by it."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox; a cancelled caller leaves nothing."""
        ...

    async def sweep(self) -> Sequence[str]:
        """Remove what dead owners or passed deadlines left behind; return the ids removed."""
        ...

    async def close(self) -> None:
        """Remove every sandbox that is still there, then disconnect."""
        ...


SessionT = TypeVar("SessionT", bound=Session)


class SessionBackend(ABC, Generic[SessionT]):
    """A :class:`hermes_rl.sandbox.Backend`, and an inventory. Nothing heavy until it is entered.

    Args:
        settings: What it is opened with.
        capabilities: What it can do, as far as that is known before it is entered.
        limits: How much it does at once, likewise.
    """

    name: str
    shows_later: frozenset[Capability] = frozenset({Capability.BASH})
    """What only a sandbox shows: it never keeps one from being started."""

    def __init__(
        self,
        settings: BackendSettings,
        *,
        capabilities: frozenset[Capability],
        limits: BackendLimits,
    ) -> None:
        self.capabilities = capabilities
        self.limits = limits
        self._settings = settings
        self._session: SessionT | None = None

    @abstractmethod
    async def _connect(self) -> SessionT:
        """Return an open session, and tell what this backend can do now that it is known."""

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BackendUnavailable: What is behind the backend cannot be reached; says how to fix it.
            ConfigError: It refuses us.
            MissingExtra: A package that the backend needs is not installed.
        """
        self._session = await self._connect()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove every sandbox of this run that is still there, then disconnect."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _connected(self) -> SessionT:
        if self._session is None:
            raise ConfigError(f"The {self.name} backend is not connected: use it in 'async with'.")
        return self._session

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox; see :meth:`hermes_rl.sandbox.Backend.create`."""
        session = self._connected()
        check_capabilities(
            spec,
            self.capabilities | self.shows_later,
            backend=self.name,
            network=self._settings.network,
        )
        return await session.create(spec)

    async def sweep(self) -> Sequence[str]:
        """Remove what dead owners or passed deadlines left behind; return the ids removed."""
        return await self._connected().sweep()

    @abstractmethod
    async def records(self) -> Sequence[SandboxRecord]:
        """List the sandboxes of all runs; works unconnected too."""

    @abstractmethod
    async def doctor(self) -> Sequence[Check]:
        """Check the prerequisites; works unconnected too."""
