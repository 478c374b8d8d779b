"""Progress of a run on stderr: a live line on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal, Protocol, TextIO, cast

import anyio

from hermes_rl.cli.standard_streams import LossyStream
from hermes_rl.evaluation import Progress

__all__ = [
    "Display",
    "DisplayChoice",
    "duration_text",
    "make_display",
    "progress_text",
    "warnings_on",
]

DisplayChoice = Literal["auto", "rich", "plain", "none"]
PLAIN_INTERVAL_S = 10.0
"""One line in a log file every ten seconds: enough to see life, few enough to keep."""
PLAIN_HEARTBEAT_S = 60.0
"""A line also when nothing has changed for a minute: long tasks are no hang."""
LIVE_INTERVAL_S = 0.5
"""Drawing costs a few milliseconds on the event loop; twice a second looks alive."""


class Display(Protocol):
    """Shows progress."""

    def update(self, progress: Progress) -> None:
        """Remember the newest moment. Returns at once."""
        ...

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...

    async def run(self) -> None:
        """Show progress until cancelled."""
        ...

    def close(self) -> None:
        """Show the last moment and leave the terminal as it was."""
        ...


def make_display(choice: DisplayChoice, stream: TextIO | None = None) -> Display:
    """Return the display asked for; ``auto`` is live on a terminal and plain elsewhere."""
    stream = cast(TextIO, LossyStream(stream or sys.stderr))
    if choice == "none":
        return _NoDisplay(stream)
    if choice == "rich" or (choice == "auto" and stream.isatty()):
        return _LiveDisplay(stream)
    return _PlainDisplay(stream)


def duration_text(seconds: float) -> str:
    """Return ``m:ss`` or ``h:mm:ss``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def progress_text(progress: Progress) -> str:
    """Return one line: counts, score, pace."""
    parts = [f"{progress.done}/{progress.planned} done", f"{progress.passed} passed"]
    if progress.errored:
        parts.append(f"{progress.errored} errored")
    parts.append(f"{progress.running} running")
    if progress.mean_reward is not None:
        parts.append(f"mean {progress.mean_reward:.3f}")
    if progress.tokens_per_s:
        parts.append(f"{progress.tokens_per_s:.0f} tok/s")
    if progress.waiting_share >= 0.01:
        parts.append(f"{progress.waiting_share:.0%} waiting")
    parts.append(duration_text(progress.elapsed_s))
    if progress.eta_s:
        parts.append(f"{duration_text(progress.eta_s)} left")
    return "  ".join(parts)


class _NoDisplay:
    """Says only what must be said."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def update(self, progress: Progress) -> None:
        """Ignore it."""

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    async def run(self) -> None:
        await anyio.sleep_forever()

    def close(self) -> None:
        """Nothing was shown."""


class _Moment:
    """The newest progress, whose clock goes on between reports."""

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self._heard_at = 0.0

    def set(self, progress: Progress) -> None:
        self.progress = progress
        self._heard_at = time.monotonic()

    @property
    def text(self) -> str:
        if self.progress is None:
            return "starting"
        since_s = time.monotonic() - self._heard_at
        eta_s = self.progress.eta_s
        now = replace(
            self.progress,
            elapsed_s=self.progress.elapsed_s + since_s,
            eta_s=None if eta_s is None else max(0.0, eta_s - since_s),
        )
        return progress_text(now)


class _PlainDisplay(_NoDisplay):
    """One plain line per interval, if anything changed."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._moment = _Moment()
        self._shown: Progress | None = None
        self._shown_at = 0.0

    def update(self, progress: Progress) -> None:
        self._moment.set(progress)

    async def run(self) -> None:
        while True:
            await anyio.sleep(PLAIN_INTERVAL_S)
            if time.monotonic() - self._shown_at >= PLAIN_HEARTBEAT_S:
                self._shown = None
            self._show()

    def close(self) -> None:
        self._show()

    def _show(self) -> None:
        if self._moment.progress is not None and self._moment.progress is not self._shown:
            self._shown, self._shown_at = self._moment.progress, time.monotonic()
            self.say(self._moment.text)


class _LiveDisplay:
    """A bar and a line that rich redraws in place; without its refresh thread."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            BarColumn(bar_width=24),
            TextColumn("{task.description}", markup=False),
            console=Console(file=stream),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("starting", total=None)
        self._moment = _Moment()
        self._bar.start()

    def update(self, progress: Progress) -> None:
        self._moment.set(progress)

    def say(self, text: str) -> None:
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    async def run(self) -> None:
        while True:
            self._draw()
            await anyio.sleep(LIVE_INTERVAL_S)

    def close(self) -> None:
        self._bar.stop()
        if self._moment.progress is not None:
            self.say(self._moment.text)

    def _draw(self) -> None:
        if (now := self._moment.progress) is not None:
            self._bar.update(
                self._task, total=now.planned, completed=now.done, description=self._moment.text
            )
        self._bar.refresh()


class _LogLines(logging.Handler):
    """Shows the library's warnings as plain lines above the progress."""

    def __init__(self, display: Display) -> None:
        super().__init__(logging.WARNING)
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        self._display.say(record.getMessage())


@contextmanager
def warnings_on(display: Display) -> Iterator[None]:
    """Send the library's warnings to the display while the context is open."""
    logger, handler = logging.getLogger("hermes_rl"), _LogLines(display)
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.propagate = propagate
        logger.removeHandler(handler)
