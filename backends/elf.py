"""The little that is needed of ELF files: the loader they name, and dropping their debug data.

Layout from the System V ABI, 64-bit little-endian files only (x86_64, aarch64).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["dynamic_loader", "loadable_part"]

_MAGIC = b"\x7fELF\x02\x01"
"""ELF, 64-bit, little-endian."""
_PT_INTERP = 3
_E_PHOFF, _E_SHOFF, _E_PHENTSIZE, _E_SHNUM = 32, 40, 54, 60
_HEADER_BYTES = 64
_PROGRAM_HEADER = struct.Struct("<IIQQQQ")


def dynamic_loader(data: bytes) -> str | None:
    """Return the path of the dynamic loader a program names; None if it names none."""
    for kind, offset, size in _segments(data):
        if kind == _PT_INTERP:
            return data[offset : offset + size].rstrip(b"\0").decode()
    return None


def loadable_part(data: bytes) -> bytes:
    """Drop what no loader reads: debug information, symbol table, section table.

    A distribution's files are stripped already; of a Python built by pyenv four fifths are debug
    data. Anything that is not such an ELF file is returned unchanged.
    """
    end = max((offset + size for _, offset, size in _segments(data)), default=0)
    if not _HEADER_BYTES <= end < len(data):
        return data
    header = bytearray(data[:_HEADER_BYTES])
    struct.pack_into("<Q", header, _E_SHOFF, 0)
    struct.pack_into("<HH", header, _E_SHNUM, 0, 0)
    return bytes(header) + data[_HEADER_BYTES:end]


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield type, file offset and size in the file of each program header."""
    if not data.startswith(_MAGIC):
        return
    (table,) = struct.unpack_from("<Q", data, _E_PHOFF)
    entry_bytes, count = struct.unpack_from("<HH", data, _E_PHENTSIZE)
    for index in range(count):
        header = _PROGRAM_HEADER.unpack_from(data, table + index * entry_bytes)
        yield header[0], header[2], header[5]
