"""The end of a log, whatever its size: what writes it may be hostile."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["log_tail"]


def log_tail(path: Path, limit_bytes: int) -> bytes:
    """Return the last bytes of a file; nothing more of it is read.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - limit_bytes))
        return file.read(limit_bytes)
