"""Files through the container engine: what it says a path is, and tar streams both ways."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Self

import orjson

__all__ = ["ArchiveStat"]

_GO_MODE_DIR = 1 << 31
_GO_MODE_SYMLINK = 1 << 27
_GO_MODE_TYPE = _GO_MODE_DIR | _GO_MODE_SYMLINK | 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19
"""Bits of Go's ``fs.FileMode`` that make a file anything but a regular one."""


@dataclass(slots=True, frozen=True)
class ArchiveStat:
    """What a path in a container is, as the engine sees it; a link is not followed."""

    size_bytes: int
    is_regular: bool
    is_directory: bool
    is_link: bool

    @classmethod
    def parse(cls, header: str) -> Self:
        """Read the header ``X-Docker-Container-Path-Stat``."""
        stat = orjson.loads(base64.b64decode(header))
        mode = stat["mode"]
        return cls(
            size_bytes=stat["size"],
            is_regular=not mode & _GO_MODE_TYPE,
            is_directory=bool(mode & _GO_MODE_DIR),
            is_link=bool(mode & _GO_MODE_SYMLINK),
        )
