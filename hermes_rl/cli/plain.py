"""Text from models and sandboxes, made safe to print on a terminal."""

from __future__ import annotations

import re
import signal

__all__ = ["die_with_the_pipe", "printable"]

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and newline, and those that reorder text."""


def printable(text: str) -> str:
    """Return ``text`` with control characters spelled out; CR LF becomes LF.

    A model's output must not steer the terminal of whoever reads it.
    """
    lines = text.replace("\r\n", "\n").encode("utf-8", "replace").decode()
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", lines)


def die_with_the_pipe() -> None:
    """End quietly when the reader of our output goes away (``view | head``)."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
