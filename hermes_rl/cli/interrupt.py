"""Signals: the first asks the run to stop, the second ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

from hermes_rl.cli.standard_streams import forgive_lost_readers

__all__ = ["Interruption"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 14
"""From the first signal to the end of the process, at the latest: teardown takes at most 10 s per
sandbox, side by side, and 15 s are promised. Sandboxes still there die with our end of their
channel."""

SHOW_CURSOR = "\x1b[?25h"
"""The live display hides it."""


class Interruption:
    """Turns SIGINT, SIGTERM and SIGHUP into one call of ``stop``; a context manager.

    The handlers are plain ones, not the event loop's, so that a second signal also ends a process
    whose event loop is stuck. For use in the main thread, inside a running event loop.

    Attributes:
        signum: The first signal that came, None if none did.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        """Prepare to call ``stop`` on the event loop at the first signal."""
        self.signum: int | None = None
        self._stop = stop
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int | None:
        """128 + the signal; None if none came."""
        return None if self.signum is None else 128 + self.signum

    def __enter__(self) -> Self:
        """Install the handlers."""
        self._loop = asyncio.get_running_loop()
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: the run is to outlive its terminal.
            self._before[number] = signal.signal(number, self._on_signal)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_overdue)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Restore the handlers that were there."""
        signal.alarm(0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signum is not None:
            _die(128 + number, "Stopped at once; sandboxes end with their channel.")
        self.signum = number
        signal.alarm(GRACE_S)
        forgive_lost_readers()
        _say(f"{signal.Signals(number).name}: stopping, tearing down. Once more = at once.")
        self._loop.call_soon_threadsafe(self._stop)

    def _on_overdue(self, number: int, frame: FrameType | None) -> None:
        _die(self.exit_code or 1, f"Teardown took more than {GRACE_S} s; stopped.")


def _say(text: str) -> None:
    """Write a line to stderr without the locks of buffered files, as a handler must."""
    try:
        prefix = "\r" if os.isatty(2) else ""
        os.write(2, f"{prefix}{text}\n".encode())
    except OSError:
        return  # stderr is closed: nobody is there to be told.


def _die(code: int, text: str) -> None:
    _say(f"{SHOW_CURSOR}{text}" if os.isatty(2) else text)
    os._exit(code)
