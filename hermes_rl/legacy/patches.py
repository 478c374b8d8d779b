"""``asyncio.run`` inside a running event loop, for code that was written for blocking tools.

Old Modal and SWE-ReX environments call ``asyncio.run()`` in each of their methods. That is refused
where a loop runs already, as it does around every environment and reward here.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from hermes_rl.legacy.functions import in_event_loop
from hermes_rl.legacy.in_worker.threads import BoundedThreads

__all__ = ["apply_patches"]

_MARK = "_hermes_rl_original"
_lock = threading.Lock()
_told: set[str] = set()
_log = logging.getLogger(__name__)


def apply_patches() -> None:
    """Let ``asyncio.run(...)`` work inside a running loop, in this process. Idempotent.

    Where no loop runs in the calling thread nothing changes. Where one does, the coroutine runs to
    its end in a loop and a thread of its own, with the caller's context variables, and the caller
    waits for it: so does everything else in its loop, which is told once per place. Code that runs
    often belongs in a thread (``loop.run_in_executor(_tool_executor, ...)``, ``sync_reward``).
    """
    with _lock:
        if not hasattr(asyncio.run, _MARK):
            asyncio.run = _nestable(asyncio.run)


def _nestable(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(main: Any, **options: Any) -> Any:
        if not in_event_loop():
            return original(main, **options)
        _tell(sys._getframe(1).f_code.co_filename, sys._getframe(1).f_lineno)
        # A pool that is shared could be full of callers that wait here.
        thread = BoundedThreads(1, "asyncio.run")
        try:
            return thread.submit(original, main, **options).result()
        finally:
            thread.shutdown(wait=False)

    setattr(run, _MARK, original)
    return run


def _tell(file: str, line: int) -> None:
    place = f"{file}:{line}"
    if place not in _told:
        _told.add(place)
        _log.warning("%s: asyncio.run() makes the running event loop wait for it.", place)
