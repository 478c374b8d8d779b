"""Standard input, output and error as others left them to us: closed, full, or without a reader."""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["LossyStream", "occupy_standard_streams"]


def occupy_standard_streams() -> None:
    """Open what is closed of the first three descriptors on /dev/null.

    Else the next file or socket would get that number, and what is meant for the user would be
    written into it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


class LossyStream:
    """Loses text where its stream cannot take it: a full disk or a closed terminal ends no run.

    A reader that went away does: whoever writes ``| head`` means to end what is before it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        """Write the text, or lose it."""
        try:
            self._stream.write(text)
        except BrokenPipeError:
            raise
        except OSError:
            pass
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or lose it."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            raise
        except OSError:
            return

    def isatty(self) -> bool:
        """Tell whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the descriptor below."""
        return self._stream.fileno()
