"""Options of the modal backend."""

from __future__ import annotations

from hermes_rl.backends.cloud_options import CloudOptions

__all__ = ["ModalOptions"]


class ModalOptions(CloudOptions):
    """Backend options of ``modal``."""

    app: str = "hermes-rl"
    """App that the sandboxes belong to, made if it is not there. One for all runs, so that a
    sweep finds what an earlier run left."""
    environment: str | None = None
    """Modal environment; None = the account's default."""
    region: str | list[str] | None = None
    """Region or regions to run in; None = anywhere."""
    gpu: str = "any"
    """Kind of GPU for tasks that want some."""
    add_python: str | None = None
    """Put this Python (``3.12``) into images, for those that have no python3. Changes what the
    agent sees."""
