"""The backend object of a cloud: everything but its vendor."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import anyio
import anyio.to_thread

from hermes_rl.backends.capability_check import check_capabilities
from hermes_rl.backends.cloud_options import CloudOptions
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
    from hermes_rl.backends.cloud_sandbox import CloudSandbox
    from hermes_rl.backends.cloud_session import CloudSession
    from hermes_rl.backends.cloud_vendor import CloudVendor

__all__ = ["CloudBackend"]

OPERATIONS = 32
"""Sandboxes that start, and that are removed, at once; a cloud's own machines do the work."""


class CloudBackend(ABC):
    """A :class:`hermes_rl.sandbox.Backend` over one vendor. Nothing heavy until it is entered."""

    name: ClassVar[str]
    extra: ClassVar[str]
    """Of our package; installs the vendor's SDK."""
    sdk: ClassVar[str]
    module: ClassVar[str]
    """Ours that imports the SDK."""
    offers: ClassVar[frozenset[Capability]]

    def __init__(self, settings: BackendSettings, options: CloudOptions) -> None:
        self.capabilities = self.offers
        self.limits = BackendLimits(
            starting=settings.max_starting or OPERATIONS, removing=OPERATIONS
        )
        self._settings = settings
        self._rate_options = options
        self._session: CloudSession | None = None

    @abstractmethod
    def _vendor(self) -> CloudVendor:
        """Return the vendor, not yet open; its module has been imported."""

    @abstractmethod
    async def _examine(self) -> Sequence[Check]:
        """Check the prerequisites; the vendor's module has been imported."""

    async def _open_vendor(self) -> CloudVendor:
        try:
            await self._import_sdk()
        except ModuleNotFoundError as error:
            raise MissingExtra.of(f"The {self.name} backend", self.extra) from error
        return self._vendor()

    async def _import_sdk(self) -> None:
        """Import in a thread what takes seconds to import."""
        limiter = anyio.CapacityLimiter(1)
        await anyio.to_thread.run_sync(importlib.import_module, self.module, limiter=limiter)

    async def __aenter__(self) -> Self:
        """Connect to the vendor, and begin to sweep what earlier runs left there.

        Raises:
            ConfigError: A token is missing or refused.
            BackendUnavailable: The vendor cannot be reached.
            MissingExtra: Its SDK is not installed.
        """
        vendor = await self._open_vendor()
        from hermes_rl.backends.cloud_session import CloudSession
        from hermes_rl.backends.creation_rate import CreationRate

        options = self._rate_options
        session = CloudSession(
            self._settings,
            vendor,
            limits=self.limits,
            capabilities=self.capabilities,
            rate=CreationRate(options.creations_per_s, burst=options.creation_burst),
        )
        await session.open()
        self._session = session
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

    def _connected(self) -> CloudSession:
        if self._session is None:
            raise ConfigError(f"The {self.name} backend is not connected: use it in 'async with'.")
        return self._session

    async def create(self, spec: SandboxSpec) -> CloudSandbox:
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
        """Remove what dead owners or passed deadlines left behind; return the ids removed."""
        return await self._connected().sweep()

    async def records(self) -> Sequence[SandboxRecord]:
        """List the sandboxes of all runs in this account; works unconnected too.

        Raises:
            ConfigError: A token is missing or refused.
            BackendUnavailable: The vendor cannot be reached.
            MissingExtra: Its SDK is not installed.
        """
        vendor = await self._open_vendor()
        from hermes_rl.backends.cloud_inventory import list_records

        return await list_records(vendor)

    async def doctor(self) -> Sequence[Check]:
        """Check the prerequisites; works unconnected too."""
        try:
            await self._import_sdk()
        except ModuleNotFoundError:
            fix = f"pip install 'hermes_rl[{self.extra}]'"
            return [Check(self.sdk, ok=False, detail="not installed", fix=fix, optional=True)]
        return await self._examine()
