"""The daytona backend: one Daytona sandbox per sandbox, an outpost over a terminal's websocket.

Daytona's own way to run a command is polled once a second and merges its two outputs; a terminal
session is a stream, and in raw mode it carries bytes. A shell starts in it, and is told to become
the outpost.

Life of a sandbox: created with labels that name its run, owner and deadline, ephemeral (deleted
when it stops), with a time to live that ends it at its deadline and an idle timer that ends it
minutes after the last time we touched it.

Everything that needs the SDK is imported when the backend is entered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes_rl.backends.cloud_backend import CloudBackend
from hermes_rl.backends.cloud_options import parse_cloud_options
from hermes_rl.backends.daytona_options import DaytonaOptions
from hermes_rl.sandbox import BackendSettings, Capability, Check

if TYPE_CHECKING:
    from hermes_rl.backends.cloud_vendor import CloudVendor

__all__ = ["DaytonaBackend", "create_backend"]


def create_backend(settings: BackendSettings) -> DaytonaBackend:
    """Return an unconnected backend.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    options = parse_cloud_options("daytona", DaytonaOptions, settings.options)
    return DaytonaBackend(settings, options)


class DaytonaBackend(CloudBackend[DaytonaOptions]):
    """See the module."""

    name = "daytona"
    extra = "daytona"
    sdk = "daytona"
    module = "hermes_rl.backends.daytona_vendor"

    def __init__(self, settings: BackendSettings, options: DaytonaOptions) -> None:
        super().__init__(settings, options)
        if options.user not in ("root", "0"):
            self.capabilities -= {Capability.USERS}

    def _vendor(self) -> CloudVendor:
        from hermes_rl.backends.daytona_vendor import DaytonaVendor

        return DaytonaVendor(self._options)

    async def _examine(self) -> Sequence[Check]:
        from hermes_rl.backends.daytona_vendor import examine

        return await examine(self._options)
