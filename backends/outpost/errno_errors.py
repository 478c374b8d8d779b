"""Error numbers reported from inside a sandbox, as typed errors."""

from __future__ import annotations

import errno

from hermes_rl.errors import (
    FileError,
    SandboxFileNotFound,
    SandboxFileTooLarge,
    SandboxIsADirectory,
    SandboxPermissionDenied,
)

__all__ = ["file_error"]

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
    return cls(f"{path}: {text}.", path=path, sandbox_id=sandbox_id)
