"""The calls in flight in one process: who runs in which thread, and how one is told to end.

A call that was cancelled keeps its thread until the tool really returns; its RESULT is sent all
the same, and only then is the thread free for another call.
"""

from __future__ import annotations

import gc
import json
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

from .frames import Kind
from .hermes import Hermes, Outcome
from .threads import BoundedThreads

__all__ = ["Calls", "Reply", "pack_outcome", "unpack_outcome"]

Reply = Callable[[Kind, int, bytes], None]
"""Takes what is to be told about a call or an end; called from any thread."""
CLEANING_THREADS = 4
"""Of their own: cleaning up must not wait for a thread that a stuck call holds."""
YOUNG = 1
"""The generations that hold what a call has left."""
STOP_CALLS_S = 1.5
STOP_CLEANING_S = 1.5
_SIZE = struct.Struct(">I")


def pack_outcome(outcome: Outcome) -> bytes:
    """Return the payload of a RESULT frame."""
    head = json.dumps({"error": outcome.error, "is_parts": outcome.is_parts}).encode()
    return _SIZE.pack(len(head)) + head + outcome.content.encode("utf-8", "replace")


def unpack_outcome(payload: bytes) -> Outcome:
    """Read the payload of a RESULT frame."""
    (size,) = _SIZE.unpack_from(payload)
    start = _SIZE.size + size
    head = json.loads(payload[_SIZE.size : start])
    return Outcome(payload[start:].decode("utf-8"), head["is_parts"], head["error"])


class _Call:
    """One call. ``thread`` is set exactly while the tool runs."""

    __slots__ = ("is_cancelled", "task", "thread")

    def __init__(self, task: str) -> None:
        self.task = task
        self.thread: int | None = None
        self.is_cancelled = False


class Calls:
    """Runs calls in a bounded number of threads. All methods return at once, but for ``stop``."""

    def __init__(self, hermes: Hermes, threads: BoundedThreads, reply: Reply) -> None:
        self._hermes = hermes
        self._reply = reply
        self._threads = threads
        self._cleaners = BoundedThreads(CLEANING_THREADS, "hermes-cleanup")
        self._lock = threading.Lock()
        self._calls: dict[int, _Call] = {}
        self._tasks: set[str] = set()
        self._ended: set[str] = set()

    def start(self, id: int, request: dict[str, Any]) -> None:
        """Run the call that a CALL frame asks for."""
        call = _Call(request["task"])
        with self._lock:
            self._calls[id] = call
            self._tasks.add(call.task)
        self._threads.submit(self._run, id, call, request)

    def cancel(self, id: int) -> None:
        """Interrupt a call; without effect once it has returned."""
        with self._lock:
            if id in self._calls:
                self._interrupt(self._calls[id])

    def end(self, id: int, task: str) -> None:
        """Interrupt what a rollout still runs and free what it holds."""
        with self._lock:
            running = [call for call in self._calls.values() if call.task == task]
            for call in running:
                self._interrupt(call)
            if running:
                self._ended.add(task)  # They may open a browser yet: cleaned up again after them.
            else:
                self._tasks.discard(task)
        self._cleaners.submit(self._clean, id, task)

    def stop(self) -> None:
        """Interrupt everything, free everything, end the threads; waits for that, bounded. Once."""
        deadline = time.monotonic() + STOP_CALLS_S + STOP_CLEANING_S
        with self._lock:
            for call in self._calls.values():
                self._interrupt(call)
            tasks = list(self._tasks)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._threads.join(STOP_CALLS_S)
        for task in tasks:
            self._cleaners.submit(self._hermes.end, task)
        self._cleaners.shutdown(wait=False)
        self._cleaners.join(deadline - time.monotonic())

    def _interrupt(self, call: _Call) -> None:
        call.is_cancelled = True
        if call.thread is not None:
            self._hermes.interrupt(call.thread)

    def _run(self, id: int, call: _Call, request: dict[str, Any]) -> None:
        thread = threading.get_ident()
        with self._lock:
            call.thread = None if call.is_cancelled else thread
        outcome = Outcome('{"error": "cancelled"}', error="cancelled")
        try:
            if call.thread is not None:
                outcome = self._hermes.call(
                    request["tool"], request["arguments"], task=call.task, call=request["call"]
                )
        finally:
            with self._lock:
                call.thread = None
                del self._calls[id]
                self._hermes.clear_interrupt(thread)
                is_last = not any(each.task == call.task for each in self._calls.values())
                clean_again = is_last and call.task in self._ended
                if clean_again:
                    self._ended.discard(call.task)
                    self._tasks.discard(call.task)
            if clean_again:
                self._hermes.end(call.task)
            # Here, or in thread mode the event loop may come to free it: one TLS context that a
            # tool dropped costs 16 ms.
            gc.collect(YOUNG)
            self._reply(Kind.RESULT, id, pack_outcome(outcome))

    def _clean(self, id: int, task: str) -> None:
        try:
            self._hermes.end(task)
        finally:
            self._reply(Kind.ENDED, id, b"")
