"""The modal backend: one Modal sandbox per sandbox, an outpost over one exec stream.

Life of a sandbox: created with tags that name its run, owner and deadline, and with a timeout
that ends it at that deadline whatever becomes of us. Its outpost is one exec; when that ends (its
lease is over, or it has heard nothing from us for minutes) the sandbox idles and Modal ends it.

Everything that needs the SDK is imported when the backend is entered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes_rl.backends.cloud_backend import CloudBackend
from hermes_rl.backends.cloud_options import parse_cloud_options
from hermes_rl.backends.modal_options import ModalOptions
from hermes_rl.sandbox import BackendSettings, Check

if TYPE_CHECKING:
    from hermes_rl.backends.cloud_vendor import CloudVendor

__all__ = ["ModalBackend", "create_backend"]


def create_backend(settings: BackendSettings) -> ModalBackend:
    """Return an unconnected backend.

    Raises:
        ConfigError: An option is unknown or wrong.
    """
    options = parse_cloud_options("modal", ModalOptions, settings.options)
    return ModalBackend(settings, options)


class ModalBackend(CloudBackend[ModalOptions]):
    """See the module."""

    name = "modal"
    extra = "modal"
    sdk = "modal"
    module = "hermes_rl.backends.modal_vendor"

    def _vendor(self) -> CloudVendor:
        from hermes_rl.backends.modal_vendor import ModalVendor

        return ModalVendor(self._options)

    async def _examine(self) -> Sequence[Check]:
        from hermes_rl.backends.modal_vendor import examine

        return await examine(self._options)
