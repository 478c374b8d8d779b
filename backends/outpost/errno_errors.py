"""Error numbers reported from inside a sandbox, as typed errors."""

from __future__ import annotations

import errno
import os

from hermes_rl.backends.outpost.frames import to_bytes
from hermes_rl.errors import (
    FileError,
    SandboxFileNotFound,
    SandboxFileTooLarge,
    SandboxIsADirectory,
    SandboxPermissionDenied,
)

__all__ = ["check_path", "file_error"]

MAX_PATH_BYTES = 64 * 1024
"""Far more than a kernel takes, far less than a frame holds."""
SHOWN_CHARACTERS = 1000
"""Of a path, in a message."""

_FILE_ERRORS: dict[int, type[FileError]] = {
    errno.ENOENT: SandboxFileNotFound,
    errno.ENOTDIR: SandboxFileNotFound,
    errno.EISDIR: SandboxIsADirectory,
    errno.EACCES: SandboxPermissionDenied,
    errno.EPERM: SandboxPermissionDenied,
    errno.EROFS: SandboxPermissionDenied,
    errno.EFBIG: SandboxFileTooLarge,
}


def file_error(path: str, number: int, text: str, *, sandbox_id: str | None = None) -> FileError:
    """Return the typed error for an errno."""
    cls = _FILE_ERRORS.get(number, FileError)
    shown = path if len(path) <= SHOWN_CHARACTERS else f"{path[:SHOWN_CHARACTERS]}..."
    return cls(f"{shown}: {text}.", path=path, sandbox_id=sandbox_id)


def check_path(path: str, *, sandbox_id: str | None = None) -> None:
    """Check that a path can be sent to a sandbox.

    Raises:
        FileError: It is far too long for any file.
    """
    if len(path) > MAX_PATH_BYTES or len(to_bytes(path)) > MAX_PATH_BYTES:
        text = os.strerror(errno.ENAMETOOLONG)
        raise file_error(path, errno.ENAMETOOLONG, text, sandbox_id=sandbox_id)
