"""A bounded place for pure-Python work that takes longer than the event loop may."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

__all__ = ["in_thread"]

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 4
"""Per event loop: the work holds the interpreter lock, so more would only add memory."""
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("hermes_rl.tools.text_work")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a worker thread. Cancelling waits for it: the work is bounded."""
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(MAX_THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(lambda: function(*args, **kwargs), limiter=limiter)
