"""The engine's end of the frame stream to one outpost: requests out, replies to whoever waits.

Life of a channel::

    channel = OutpostChannel(transport, explain=...)
    task_group.start_soon(channel.run)       # the reader; owned by the backend's task group
    hello = await channel.wait_hello(timeout_s=10)
    ...
    await transport.aclose()                 # ends run(), which fails every waiter

Who owns the reader: the backend. It enters one anyio task group in its ``__aenter__``, starts
``run`` of every channel in it and leaves it in ``__aexit__`` after closing every sandbox. ``run``
is shielded from cancellation, because a cancelled caller still waits for its command's death;
it ends only when the transport ends, so every transport must be closed by its sandbox. It never
raises: whatever goes wrong becomes the error of all waiters.

The peer may be hostile: its frames are bounded, unknown ids are ignored, and anything that is not
the protocol ends the channel.
"""

from __future__ import annotations

import copy
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import anyio
from anyio.lowlevel import checkpoint

from hermes_rl.backends.outpost.answers import Hello, HelloWaiter, Reply, Waiter
from hermes_rl.backends.outpost.frames import (
    MAX_PAYLOAD_BYTES,
    FrameError,
    FrameParser,
    Kind,
    frame,
)
from hermes_rl.backends.outpost.transport import Transport
from hermes_rl.errors import ChannelLost, SandboxError, SandboxGone

__all__ = ["KILL_WAIT_S", "Loss", "OutpostChannel"]

logger = logging.getLogger(__name__)

FRAMES_PER_TURN = 256
"""Frames handled before other tasks get the loop: a flood must not hold it for 10 ms."""
PING_INTERVAL_S = 30.0
PING_TIMEOUT_S = 10.0
PING_MISSES = 2
EXPLAIN_LIMIT_S = 5.0
"""Longest wait for the backend to find out why a channel ended."""
_FAREWELLS = {
    "garbage": "something in it wrote into its supervisor's stream",
    "limited": "something in it limited the resources of its supervisor",
}
"""What an outpost's last word means, where it says more than how its stream ended."""
KILL_WAIT_S = 2.0
"""Longest wait for a killed command's result."""


@dataclass(slots=True, frozen=True)
class Loss:
    """How a channel ended.

    Attributes:
        reason: A sentence.
        bye: The outpost's own last word (``expired``, ...), if it said one.
        is_forged: What arrived was no frame of an outpost: something inside wrote to its stream.
    """

    reason: str
    bye: str = ""
    is_forged: bool = False

    @property
    def is_by_agent(self) -> bool:
        """Something inside wrote frames that the other end would not, or took on the outpost."""
        return self.is_forged or self.bye in ("garbage", "limited")


async def _unexplained(loss: Loss) -> SandboxError:
    if loss.is_by_agent:
        why = f"The sandbox is gone: {loss.reason}."
        return SandboxGone(why, cause="killed", by_agent=True)
    return ChannelLost(f"The outpost's stream ended: {loss.reason}.")


class OutpostChannel:
    """Multiplexes requests over one transport.

    Args:
        transport: The byte stream; closed by whoever made it.
        explain: Asked once, when the stream has ended, for the error all callers get from then
            on; a backend looks up there whether the sandbox was out of memory, expired or removed.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        explain: Callable[[Loss], Awaitable[SandboxError]] = _unexplained,
    ) -> None:
        self.error: SandboxError | None = None
        self.is_paused = False
        """Set while the sandbox is frozen: it is not pinged then."""
        self.ended = anyio.Event()
        """Set once ``run`` has failed every waiter."""
        self._transport = transport
        self._explain = explain
        self._waiters: dict[int, Waiter] = {}
        self._ids = itertools.count(1)
        self._hello = HelloWaiter()
        self._waiters[0] = self._hello
        self._bye = ""
        self._is_forged = False
        self._refused = ""
        self._heard = False

    async def run(self) -> None:
        """Read until the transport ends. Run it in the backend's task group; never raises."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch)
                reason = await self._read_all()
                group.cancel_scope.cancel()
            if self._is_forged:
                # What we no longer read could hold up the sandbox's end.
                await self._transport.aclose()
            await self._lose(self._refused or reason)

    async def _read_all(self) -> str:
        parser = FrameParser()
        try:
            while data := await self._transport.receive():
                self._heard = True
                for count, (kind, id, payload) in enumerate(parser.feed(data), 1):
                    self._dispatch(kind, id, payload)
                    if count % FRAMES_PER_TURN == 0:
                        await checkpoint()
        except FrameError as error:
            self._is_forged = True
            return f"it broke the protocol ({error})"
        except OSError as error:
            return str(error) or type(error).__name__
        except Exception as error:
            # The boundary between one sandbox's channel and the task group of all of them.
            logger.exception("the channel's reader failed")
            return f"reading failed ({error!r})"
        return "end of stream"

    def _dispatch(self, kind: int, id: int, payload: bytes) -> None:
        if kind == Kind.BYE:
            self._bye = payload[:100].decode("ascii", "replace")
            return
        waiter = self._waiters.get(id)
        if waiter is not None:
            try:
                waiter.received(kind, payload)
            except (ArithmeticError, LookupError, ValueError) as error:
                raise FrameError(f"{Kind(kind).name}: {error!r}") from error

    async def _watch(self) -> None:
        misses = 0
        while misses < PING_MISSES:
            self._heard = False
            await anyio.sleep(PING_INTERVAL_S)
            if self._heard or self.is_paused:
                misses = 0
                continue
            try:
                await self.ping(timeout_s=PING_TIMEOUT_S)
                misses = 0
            except SandboxError:
                misses += 0 if self.is_paused else 1
        await self._transport.aclose()

    async def _lose(self, reason: str) -> None:
        reason = _FAREWELLS.get(self._bye, reason)
        loss = Loss(reason, self._bye, self._is_forged)
        error: SandboxError | None = None
        with anyio.move_on_after(EXPLAIN_LIMIT_S):
            try:
                error = await self._explain(loss)
            except SandboxError as raised:
                error = raised
            except Exception as raised:
                logger.exception("finding out why a sandbox ended failed")
                error = ChannelLost(f"The outpost's stream ended: {reason} ({raised!r}).")
        self.error = error or await _unexplained(loss)
        for waiter in list(self._waiters.values()):
            waiter.lost(self.error)
        self._waiters.clear()
        self.ended.set()

    def check(self) -> None:
        """Raise the error the channel ended with, if it has ended."""
        if self.error is not None:
            raise copy.copy(self.error)

    async def wait_hello(self, *, timeout_s: float) -> Hello:
        """Wait for the outpost to say that it is there.

        Raises:
            ChannelLost: Nothing came in time.
            SandboxError: The stream ended; whatever ``explain`` says.
        """
        with anyio.move_on_after(timeout_s):
            await self._hello.done.wait()
        self._hello.check()
        if self._hello.hello is None:
            raise ChannelLost(f"The outpost did not answer within {timeout_s:g} s of its start.")
        return self._hello.hello

    @contextmanager
    def waiting(self, waiter: Waiter) -> Iterator[int]:
        """Register ``waiter`` under a fresh id while the context is open.

        Raises:
            SandboxError: The channel has ended.
        """
        self.check()
        waiter.id = next(self._ids) & 0xFFFFFFFF or next(self._ids)
        self._waiters[waiter.id] = waiter
        try:
            yield waiter.id
        finally:
            self._waiters.pop(waiter.id, None)

    async def send(self, kind: Kind, id: int, payload: bytes = b"") -> None:
        """Send one frame; waits while the outpost does not read.

        Raises:
            SandboxError: The channel has ended, or no frame can hold that much.
        """
        self.check()
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise SandboxError(
                f"A request to the sandbox has {len(payload)} bytes, more than the "
                f"{MAX_PAYLOAD_BYTES} that are possible: a path or a name is too long."
            )
        try:
            await self._transport.send(frame(kind, id, payload))
        except OSError:
            await self.ended.wait()
            self.check()

    async def ask(
        self, kind: Kind, payload: bytes = b"", *, limit_bytes: int = 0, data: bytes = b""
    ) -> Reply:
        """Send a request, with ``data`` in pieces after it, and wait for its answer.

        A cancelled caller leaves the outpost doing nothing: the request is called off.
        """
        reply = Reply(limit_bytes)
        with self.waiting(reply) as id:
            try:
                await self.send(kind, id, payload)
                if data:
                    await self.send_pieces(id, data)
                await reply.done.wait()
            except BaseException:
                await self.call_off(id)
                raise
        reply.check()
        return reply

    async def send_pieces(self, id: int, data: bytes, *, piece_bytes: int = 256 * 1024) -> None:
        """Send ``data`` as DATA frames and an END."""
        for start in range(0, len(data), piece_bytes):
            await self.send(Kind.DATA, id, data[start : start + piece_bytes])
        await self.send(Kind.END, id)

    async def call_off(self, id: int, *, grace_s: float = 0.0) -> None:
        """Tell the outpost to kill or drop a request, even when the caller is cancelled."""
        if self.error is not None:
            return
        with anyio.move_on_after(KILL_WAIT_S, shield=True):
            try:
                await self.send(Kind.KILL, id, int(grace_s * 1000).to_bytes(4, "big"))
            except SandboxError:
                return

    async def refuse(self, answer: FrameError) -> NoReturn:
        """End the channel: an answer that came over it makes no sense.

        Raises:
            SandboxError: What everyone gets who uses the channel from now on.
        """
        self._is_forged = True
        self._refused = f"it broke the protocol ({answer})"
        await self._transport.aclose()
        await self.ended.wait()
        self.check()
        raise AssertionError("a channel that has ended has an error")

    async def ping(self, *, timeout_s: float) -> float:
        """Return the round trip in seconds.

        Raises:
            ChannelLost: No answer in time.
        """
        start = anyio.current_time()
        with anyio.move_on_after(timeout_s):
            await self.ask(Kind.PING)
            return anyio.current_time() - start
        raise ChannelLost(f"The outpost did not answer a ping within {timeout_s:g} s.")
