"""The backend object of a cloud: everything but its vendor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from hermes_rl.backends.cloud_options import CloudOptions
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
    from hermes_rl.backends.cloud_session import CloudSession
    from hermes_rl.backends.cloud_vendor import CloudVendor

__all__ = ["CloudBackend"]

CAPABILITIES = frozenset(
    {
        Capability.ISOLATION,
        Capability.IMAGES,
        Capability.DOCKERFILE,
        Capability.USERS,
        Capability.CPU_LIMIT,
        Capability.MEMORY_LIMIT,
        Capability.NETWORK_NONE,
        Capability.NETWORK_PUBLIC,
        Capability.PTY,
        Capability.GPU,
    }
)
"""What both of our clouds have."""
OPERATIONS = 32
"""Sandboxes that start, and that are removed, at once; a cloud's own machines do the work."""


OptionsT = TypeVar("OptionsT", bound=CloudOptions)


class CloudBackend(SessionBackend["CloudSession"], Generic[OptionsT]):
    """A :class:`hermes_rl.sandbox.Backend` over one vendor."""

    extra: ClassVar[str]
    """Of our package; installs the vendor's SDK."""
    sdk: ClassVar[str]
    module: ClassVar[str]
    """Ours that imports the SDK."""

    def __init__(self, settings: BackendSettings, options: OptionsT) -> None:
        super().__init__(
            settings,
            capabilities=CAPABILITIES,
            limits=BackendLimits(starting=settings.max_starting or OPERATIONS, removing=OPERATIONS),
        )
        self._options = options

    @abstractmethod
    def _vendor(self) -> CloudVendor:
        """Return the vendor, not yet open; its module has been imported."""

    @abstractmethod
    async def _examine(self) -> Sequence[Check]:
        """Check the prerequisites; the vendor's module has been imported."""

    async def _open_vendor(self) -> CloudVendor:
        await self._import_sdk()
        return self._vendor()

    async def _import_sdk(self) -> None:
        await import_for(self.name, self.module, extra=self.extra)

    async def _connect(self) -> CloudSession:
        """Connect to the vendor, and begin to sweep what earlier runs left there.

        Raises:
            ConfigError: A token is missing or refused.
            BackendUnavailable: The vendor cannot be reached.
            MissingExtra: Its SDK is not installed.
        """
        vendor = await self._open_vendor()
        from hermes_rl.backends.cloud_session import CloudSession
        from hermes_rl.backends.creation_rate import CreationRate

        options = self._options
        session = CloudSession(
            self._settings,
            vendor,
            limits=self.limits,
            capabilities=self.capabilities,
            rate=CreationRate(options.creations_per_s, burst=options.creation_burst),
        )
        await session.open()
        return session

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
        except MissingExtra:
            fix = f"pip install 'hermes_rl[{self.extra}]'"
            return [Check(self.sdk, ok=False, detail="not installed", fix=fix, optional=True)]
        return await self._examine()
