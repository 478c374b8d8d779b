"""Ctrl-C while modules are imported: the end, at once.

There is nothing yet to tear down, and an interrupt in the middle of an import ends in a traceback,
in an ImportError of a package that catches it, or in a crash of one written in C (all seen).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

__all__ = ["STOPPED", "importing"]

STOPPED = "SIGINT: stopped."


@contextmanager
def importing() -> Iterator[None]:
    """End the process at once if Ctrl-C comes within the body; for the main thread.

    Elsewhere, and where somebody else handles or ignores the signal, nothing is changed.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: FrameType | None) -> None:
    with suppress(OSError):  # stderr may be closed: then nobody is there to be told.
        os.write(2, f"{STOPPED}\n".encode())
    os._exit(128 + number)
