"""Text files as the editing tools see them, without losing a byte of what is not edited."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

__all__ = ["MAX_TEXT_BYTES", "TextFile", "looks_binary"]

MAX_TEXT_BYTES = 4 << 20
"""Files above this are not edited, and are read in parts: decoding more at once would hold the
event loop for too long."""
_BOM = b"\xef\xbb\xbf"
_SNIFFED_BYTES = 8_192
_CONTROL = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
MAX_CONTROL_SHARE = 0.30
"""Of the first 1,000 bytes; more control characters than that is no text."""


def looks_binary(data: bytes) -> bool:
    """Judge by content, never by name: a NUL byte early on, or mostly control characters."""
    if b"\0" in data[:_SNIFFED_BYTES]:
        return True
    sample = data[:1_000]
    return sum(byte in _CONTROL for byte in sample) > MAX_CONTROL_SHARE * len(sample)


@dataclass(slots=True, frozen=True)
class TextFile:
    r"""Decoded text and what is needed to write it back byte for byte.

    Attributes:
        text: With ``\n`` line ends if all of them were ``\r\n``, else unchanged. Bytes that are
            not UTF-8 are lone surrogates and come back as they were.
        crlf: Every line end was ``\r\n``.
        bom: The file began with a byte order mark.
    """

    text: str
    crlf: bool = False
    bom: bool = False

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a file's bytes."""
        bom = data.startswith(_BOM)
        text = data[len(_BOM) if bom else 0 :].decode("utf-8", "surrogateescape")
        ends = text.count("\n")
        crlf = ends > 0 and text.count("\r\n") == ends
        return cls(text.replace("\r\n", "\n") if crlf else text, crlf, bom)

    def encode(self) -> bytes:
        """Return the file's bytes."""
        text = self.text.replace("\n", "\r\n") if self.crlf else self.text
        data = text.encode("utf-8", "surrogateescape")
        return _BOM + data if self.bom else data

    def with_text(self, text: str) -> Self:
        """Return the same file with another text."""
        return replace(self, text=text)

    def localised(self, text: str) -> str:
        r"""Return text of the model with this file's idea of line ends (``\n`` inside)."""
        return text.replace("\r\n", "\n") if self.crlf else text
