"""What packages say they have installed: Debian's checksums and a wheel's ``RECORD``.

The files come out of a sandbox. They may be megabytes of anything, so they are read line by line,
in a worker thread, and a line that makes no sense is passed over.
"""

from __future__ import annotations

import csv
import io
import posixpath
from collections.abc import Collection, Iterator

__all__ = ["conffile_md5", "packaged_md5", "recorded_hash"]

MAX_LINE_BYTES = 16 * 1024
"""A line holds a path, which the kernel ends at 4096 bytes, and little more."""


def _lines(data: bytes) -> Iterator[bytes]:
    for line in io.BytesIO(data):
        if len(line) <= MAX_LINE_BYTES:
            yield line.rstrip(b"\r\n")


def packaged_md5(listed: bytes, names: Collection[str]) -> str | None:
    """Return the checksum of a file in a package's ``md5sums``.

    Args:
        listed: The list.
        names: Every spelling of the file's path.
    """
    wanted = {name.lstrip("/").encode() for name in names}
    for line in _lines(listed):
        digest, _, name = line.partition(b"  ")
        if name in wanted:
            return digest.decode("ascii", "replace")
    return None


def conffile_md5(status: bytes, path: str) -> str | None:
    """Return the checksum of a configuration file, which only dpkg's status has."""
    start = f" {path} ".encode()
    for line in _lines(status):
        if line.startswith(start):
            return line[len(start) :].partition(b" ")[0].decode("ascii", "replace")
    return None


def recorded_hash(record: bytes, site: str, path: str) -> str | None:
    """Return what a wheel's ``RECORD`` says of a file, ``sha256=...``.

    Args:
        record: It.
        site: The directory that its paths are relative to.
        path: The file's absolute path.
    """
    for line in _lines(record):
        try:
            row = next(csv.reader([line.decode("utf-8", "replace")]), [])
        except csv.Error:
            continue
        if len(row) > 1 and posixpath.normpath(posixpath.join(site, row[0])) == path:
            return row[1]
    return None
