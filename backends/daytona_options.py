"""Options of the daytona backend."""

from __future__ import annotations

from pydantic import Field

from hermes_rl.backends.cloud_options import CloudOptions

__all__ = ["DaytonaOptions"]


class DaytonaOptions(CloudOptions):
    """Backend options of ``daytona``."""

    snapshot: str | None = None
    """Snapshot of sandboxes whose spec names no image; its own limits hold then."""
    target: str | None = None
    """Region; None = the account's default."""
    user: str | None = "root"
    """User that commands run as; None = what Daytona chooses. Not root: no switching of users."""
    disk_gb: int | None = Field(default=None, ge=1)
    """Disk of a sandbox; None = the account's default."""
    auto_stop_minutes: int = Field(default=5, ge=1)
    """Daytona stops, and so deletes, a sandbox that nobody has touched for so long: the engine
    touches each every minute."""
