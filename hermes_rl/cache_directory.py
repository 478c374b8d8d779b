"""Where this library keeps what is reusable between runs."""

from __future__ import annotations

import os
from pathlib import Path

from hermes_rl.errors import ConfigError

__all__ = ["cache_directory"]


def cache_directory() -> Path:
    """Return our directory in the user's cache directory; absolute, it need not exist.

    Raises:
        ConfigError: Nothing says where the user's files are.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        return base.expanduser().absolute() / "hermes_rl"
    except RuntimeError as error:
        raise ConfigError(
            "This user has no home directory: set HOME, or XDG_CACHE_HOME to a directory that may "
            "be written to."
        ) from error
