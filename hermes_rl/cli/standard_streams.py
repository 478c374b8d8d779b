"""Standard input, output and error as others left them to us: closed, full, or without a reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, TextIO, cast

__all__ = ["LossyStream", "forgive_lost_readers", "occupy_standard_streams"]


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


def forgive_lost_readers() -> None:
    """From now on lose what nobody takes, on standard output and error too.

    For a process that was told to stop: Ctrl-C has also ended the ``tee`` that it writes to, and
    what hung up was its terminal.
    """
    LossyStream.forgives_lost_readers = True
    sys.stdout = cast(TextIO, LossyStream(sys.stdout))
    sys.stderr = cast(TextIO, LossyStream(sys.stderr))


class LossyStream:
    """Loses text where its stream cannot take it: a full disk or a closed terminal ends no run.

    A reader that went away does: whoever writes ``| head`` means to end what is before it; but see
    :func:`forgive_lost_readers`.
    """

    forgives_lost_readers: ClassVar[bool] = False

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        """Write the text, or lose it."""
        with self._forgiving():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered, or lose it."""
        with self._forgiving():
            self._stream.flush()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            if not self.forgives_lost_readers:
                raise
        except OSError:
            return

    def isatty(self) -> bool:
        """Tell whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Return the descriptor below."""
        return self._stream.fileno()
