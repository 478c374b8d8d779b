"""One worker as the engine sees it: calls go out, results come back, a thread is busy meanwhile.

A call takes one of the worker's slots before it is sent and gives it back when the worker says
that the tool has returned; not before, whoever has lost patience. So no more tools run than there
are threads, and none waits in the worker.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import orjson

from hermes_rl.errors import ConfigError, HermesRLError, ToolFault
from hermes_rl.legacy.in_worker.calls import unpack_outcome
from hermes_rl.legacy.in_worker.frames import Kind
from hermes_rl.legacy.in_worker.hermes import Outcome
from hermes_rl.types import JSONObject

__all__ = ["STOP_S", "Link"]

STOP_S = 4.5
"""From asking a worker to stop until it is killed; it bounds its own clean-up below that."""
END_S = 3.0
"""Longest wait for a rollout's things to be freed; the worker goes on by itself."""
SEND_S = 1.0
"""For a frame that is sent although its sender was cancelled."""


class _Waiting:
    """A call or an end whose answer has not come."""

    def __init__(self) -> None:
        self.answered = anyio.Event()
        self.payload: bytes | None = None
        self.holds_slot = False


class Link:
    """Base of the two kinds of worker.

    Attributes:
        rollouts: How many rollouts belong to this worker.
        home: Its private HERMES_HOME, once it is ready.
        failure: Why it cannot be used (any more); None while it can.
    """

    def __init__(self, threads: int) -> None:
        self.rollouts = 0
        self.home: str | None = None
        self.failure: HermesRLError | None = None
        self._slots = anyio.CapacityLimiter(threads)
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._ready = anyio.Event()

    @abstractmethod
    async def _send(self, kind: Kind, id: int, message: JSONObject) -> None:
        """Send a frame. It is sent whole even if the wait for room is cancelled."""
        ...

    @abstractmethod
    async def run(self) -> None:
        """Carry answers until the worker has ended; never raises."""
        ...

    @abstractmethod
    async def stop(self) -> None:
        """End the worker and all it holds, within about ``STOP_S``. Idempotent."""
        ...

    @property
    def busy(self) -> int:
        """Slots that are taken."""
        return self._slots.borrowed_tokens

    async def ready(self) -> None:
        """Wait until hermes-agent is imported.

        Raises:
            ConfigError: It cannot be.
            ToolFault: The worker died.
        """
        await self._ready.wait()
        if self.failure is not None:
            raise self.failure

    async def call(
        self,
        request: JSONObject,
        *,
        timeout_s: float,
        on_start: Callable[[], None] = lambda: None,
    ) -> Outcome | None:
        """Run one call; None = it passed its deadline and was interrupted.

        Waiting for a slot does not count against the deadline.

        Args:
            request: What a CALL frame holds.
            timeout_s: Deadline.
            on_start: Called when a slot has been got.

        Raises:
            ToolFault: The worker died.
        """
        waiting = _Waiting()
        await self._slots.acquire_on_behalf_of(waiting)
        on_start()
        waiting.holds_slot = True
        id = self._add(waiting)
        try:
            with anyio.move_on_after(timeout_s):
                await self._send(Kind.CALL, id, request)
                await waiting.answered.wait()
        finally:
            if not waiting.answered.is_set():
                await self._shielded(lambda: self._send(Kind.CANCEL, id, {}))
        if not waiting.answered.is_set():
            return None
        if waiting.payload is None:
            raise self.failure or ToolFault("The worker of hermes-agent's tools is gone.")
        return unpack_outcome(waiting.payload)

    async def end(self, task: str) -> None:
        """Free what a rollout holds; returns when that is done, or after ``END_S``."""
        waiting = _Waiting()
        id = self._add(waiting)
        try:
            with anyio.move_on_after(END_S):
                await self._send(Kind.END, id, {"task": task})
                await waiting.answered.wait()
        finally:
            self._waiting.pop(id, None)

    def _add(self, waiting: _Waiting) -> int:
        id = next(self._ids)
        self._waiting[id] = waiting
        if self.failure is not None:
            self._answer(id, None)
        return id

    def _received(self, kind: int, id: int, payload: bytes) -> None:
        """Take one frame of the worker."""
        if kind == Kind.READY:
            self.home = orjson.loads(payload)["home"]
            self._ready.set()
        elif kind == Kind.FAILED:
            self._lost(ConfigError(orjson.loads(payload)["error"]))
        elif kind in (Kind.RESULT, Kind.ENDED):
            self._answer(id, payload)

    def _answer(self, id: int, payload: bytes | None) -> None:
        waiting = self._waiting.pop(id, None)
        if waiting is None:
            return
        waiting.payload = payload
        if waiting.holds_slot:
            self._slots.release_on_behalf_of(waiting)
        waiting.answered.set()

    def _lost(self, error: HermesRLError) -> None:
        """The worker is gone, or of no use: nobody waits for it any more."""
        self.failure = self.failure or error
        self._ready.set()
        for id in list(self._waiting):
            self._answer(id, None)

    @staticmethod
    async def _shielded(send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        with anyio.move_on_after(SEND_S, shield=True):
            await send()
