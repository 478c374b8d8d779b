"""Commands in an outpost as the engine sees them: run to the end, or talked to as a stream."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import replace
from signal import SIGKILL
from types import TracebackType
from typing import Self

import anyio
from anyio.lowlevel import checkpoint

from hermes_rl.backends.outpost.answers import (
    SMALL_PIECE_BYTES,
    Failure,
    Waiter,
    add_piece,
    number_in,
)
from hermes_rl.backends.outpost.channel import KILL_WAIT_S, OutpostChannel
from hermes_rl.backends.outpost.frames import (
    FrameError,
    Kind,
    to_bytes,
    to_text,
    unpack_fields,
)
from hermes_rl.backends.outpost.request import (
    INLINE_STDIN_BYTES,
    OUTPUT_WINDOW_BYTES,
    RunRequest,
)
from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import TIMEOUT_EXIT_CODE, ExecResult, ProcessChunk

__all__ = ["Execution", "OutpostProcess", "RunRequest", "StreamContext", "run_to_end"]

STDIN_WINDOW_BYTES = 256 * 1024
"""Standard input sent ahead of the process; bounds the outpost's memory."""
OUTPUT_SLACK_BYTES = 4 << 20
"""What may arrive beyond the window: pipes are drained without credit when the process ends."""
DEADLINE_SLACK_S = 1.0
"""The outpost keeps the deadline; only if it does not, we act, this much later."""


class Execution(Waiter):
    """Follows one command: its output as kept by the outpost, its result, room for its input."""

    def __init__(self, request: RunRequest) -> None:
        super().__init__()
        self.request = request
        self.pid = 0
        self.started = anyio.Event()
        self.gone = anyio.Event()
        """Set when the whole tree is known to be dead after a kill."""
        self.result: ExecResult | None = None
        self.failure: Failure | None = None
        self._kept: dict[int, list[bytes]] = {Kind.STDOUT: [], Kind.STDERR: []}
        self._kept_bytes = 0
        self._stdin_room = STDIN_WINDOW_BYTES
        self._stdin_closed = False
        self._stdin_changed = anyio.Event()

    def received(self, kind: int, payload: bytes) -> None:
        """Take one reply frame."""
        if kind in (Kind.STDOUT, Kind.STDERR):
            self.output(kind, payload)
        elif kind == Kind.RESULT:
            self._finish(unpack_fields(payload))
        elif kind == Kind.STARTED:
            self.pid = number_in(unpack_fields(payload), "pid")
            self.started.set()
        elif kind == Kind.ROOM:
            self._stdin_acknowledged(int.from_bytes(payload, "big"))
        elif kind == Kind.FAILED:
            self.failure = Failure.parse(payload)
            self.started.set()
            self._end()
        elif kind == Kind.DONE:
            self.gone.set()
        else:
            super().received(kind, payload)

    def output(self, kind: int, data: bytes) -> None:
        """Take output: here, the kept output of a finished command."""
        self._kept_bytes += len(data)
        if self._kept_bytes > 2 * self.request.limit_bytes + OUTPUT_SLACK_BYTES:
            raise FrameError("more output than was asked for")
        add_piece(self._kept[kind], data)

    def lost(self, error: SandboxError) -> None:
        """The channel is gone."""
        super().lost(error)
        self.started.set()
        self.gone.set()
        self._stdin_closed = True
        self._wake_stdin()

    def _finish(self, fields: dict[str, bytes]) -> None:
        if self.result is not None:
            raise FrameError("two results")
        timed_out = fields["timed_out"] == b"1"
        code, signal = number_in(fields, "code"), number_in(fields, "signal")
        self.result = ExecResult(
            exit_code=TIMEOUT_EXIT_CODE if timed_out else code & 0xFF,
            stdout=b"".join([*self._kept[Kind.STDOUT], fields.get("out", b"")]),
            stderr=b"".join([*self._kept[Kind.STDERR], fields.get("err", b"")]),
            timed_out=timed_out,
            signal=signal or None,
            stdout_total=number_in(fields, "out_total", 0),
            stderr_total=number_in(fields, "err_total", 0),
            stdout_head=number_in(fields, "out_head", 0),
            stderr_head=number_in(fields, "err_head", 0),
            duration_s=number_in(fields, "duration_us") / 1e6,
            background=fields["background"] == b"1",
            cwd=to_text(fields["cwd"]) if "cwd" in fields else None,
        )
        self._kept.clear()
        self._end()

    def _end(self) -> None:
        self._stdin_closed = True
        self._wake_stdin()
        self.done.set()

    def _stdin_acknowledged(self, count: int) -> None:
        self._stdin_room += count
        self._stdin_closed = self._stdin_closed or count == 0
        self._wake_stdin()

    def _wake_stdin(self) -> None:
        self._stdin_changed.set()
        self._stdin_changed = anyio.Event()

    async def wait_for(self, change: anyio.Event) -> None:
        """Wait until the sandbox has done something."""
        await change.wait()

    async def feed(self, channel: OutpostChannel, data: bytes) -> bool:
        """Send standard input; False when the process does not read it any more."""
        view = memoryview(data)
        while view:
            while self._stdin_room <= 0 and not self._stdin_closed:
                await self.wait_for(self._stdin_changed)
            if self._stdin_closed:
                return False
            piece = view[: self._stdin_room]
            self._stdin_room -= len(piece)
            view = view[len(piece) :]
            await channel.send(Kind.STDIN, self.id, bytes(piece))
        return True

    def outcome(self) -> ExecResult:
        """Return the result; a command that could not start has one too, as in a shell.

        Raises:
            SandboxError: The channel was lost, or the requested user does not exist.
        """
        self.check()
        if self.result is not None:
            return self.result
        failure = self.failure or Failure(0, "no result", "")
        if failure.reason == "user":
            raise SandboxError(f"The command could not be started: {failure.text}.")
        code = failure.number & 0xFF if failure.reason == "start" else 126
        message = to_bytes(f"hermes: {failure.text}\n")
        total = len(message)
        if self.request.merge_stderr:
            return ExecResult(exit_code=code, stdout=message, stdout_total=total, stdout_head=total)
        return ExecResult(exit_code=code, stderr=message, stderr_total=total, stderr_head=total)

    def synthesized(self) -> ExecResult:
        """Stand in for a result that never came."""
        return ExecResult(
            exit_code=TIMEOUT_EXIT_CODE, timed_out=True, duration_s=self.request.timeout_s or 0.0
        )

    def overdue(self) -> ExecResult:
        """Return the result of a command that we ended because its deadline had passed.

        The outpost keeps deadlines itself. Where it gets no turn in time, on a busy machine say,
        the kill is the engine's, and what the outpost reports knows of no deadline.
        """
        if not self.done.is_set():
            return self.synthesized()
        result = self.outcome()
        if result.signal != SIGKILL:
            return result
        return replace(result, exit_code=TIMEOUT_EXIT_CODE, timed_out=True)

    async def end_tree(self, channel: OutpostChannel, *, grace_s: float = 0.0) -> None:
        """Kill the tree; wait at most the grace and 2 s for the result. Not cancellable."""
        with anyio.move_on_after(grace_s + KILL_WAIT_S, shield=True):
            await channel.call_off(self.id, grace_s=grace_s)
            if self.done.is_set():
                await self.gone.wait()
            else:
                await self.done.wait()


async def run_to_end(channel: OutpostChannel, request: RunRequest) -> ExecResult:
    """Run a command and return its result. A cancelled caller leaves its tree dead.

    Raises:
        SandboxError: The sandbox ended.
    """
    execution = Execution(request)
    with channel.waiting(execution) as id:
        try:
            await request.send(channel, id)
            limit_s = None if request.timeout_s is None else request.timeout_s + DEADLINE_SLACK_S
            with anyio.move_on_after(limit_s):
                if len(request.stdin or b"") > INLINE_STDIN_BYTES:
                    await _feed_while_running(channel, execution)
                await execution.done.wait()
        except BaseException:
            await execution.end_tree(channel)
            raise
        if not execution.done.is_set():
            await execution.end_tree(channel)
            return execution.overdue()
    return execution.outcome()


async def _feed_while_running(channel: OutpostChannel, execution: Execution) -> None:
    data = (execution.request.stdin or b"")[INLINE_STDIN_BYTES:]
    if await execution.feed(channel, data) and not execution.done.is_set():
        await channel.send(Kind.STDIN_EOF, execution.id)


class OutpostProcess(Execution):
    """A :class:`hermes_rl.sandbox.Process`: output under credit, or a rolling tail."""

    def __init__(self, channel: OutpostChannel, request: RunRequest) -> None:
        super().__init__(request)
        self._channel = channel
        self._chunks: deque[ProcessChunk] = deque()
        self._unread_bytes = 0
        self._consumed_bytes = 0
        self._tail = bytearray()
        self._total_bytes = 0
        self._arrived = anyio.Event()

    @property
    def tail(self) -> bytes:
        """The last bytes of output so far."""
        return bytes(self._tail)

    @property
    def total_bytes(self) -> int:
        """Bytes of output so far."""
        return self._total_bytes

    def received(self, kind: int, payload: bytes) -> None:
        """Take one reply frame."""
        if kind == Kind.TAIL:
            self._roll(int.from_bytes(payload[:8], "big"), payload[8:])
        else:
            super().received(kind, payload)

    def output(self, kind: int, data: bytes) -> None:
        """Queue output for the reader; more than the window is against the protocol."""
        self._unread_bytes += len(data)
        self._total_bytes += len(data)
        if self._unread_bytes > OUTPUT_WINDOW_BYTES + OUTPUT_SLACK_BYTES:
            raise FrameError("output beyond the credit given")
        self._queue(1 if kind == Kind.STDOUT else 2, data)
        self._arrived.set()

    def _queue(self, fd: int, data: bytes) -> None:
        """Append a chunk; small ones become one while nobody reads them."""
        last = self._chunks[-1] if self._chunks else None
        if last and last.fd == fd and len(last.data) + len(data) <= SMALL_PIECE_BYTES:
            self._chunks[-1] = ProcessChunk(fd, last.data + data)
        else:
            self._chunks.append(ProcessChunk(fd, data))

    def _roll(self, end: int, data: bytes) -> None:
        limit = self.request.limit_bytes
        if len(data) > max(limit, 1):
            raise FrameError("a longer tail than was asked for")
        if end - len(data) > self._total_bytes:
            self._tail.clear()
        self._total_bytes = end
        self._tail += data
        del self._tail[: max(0, len(self._tail) - limit)]

    def _end(self) -> None:
        super()._end()
        self._arrived.set()

    def lost(self, error: SandboxError) -> None:
        """The channel is gone."""
        super().lost(error)
        self._arrived.set()

    def __aiter__(self) -> Self:
        if self.request.output != "flow":
            raise TypeError("a stream with tail_bytes cannot be iterated; read .tail")
        return self

    async def __anext__(self) -> ProcessChunk:
        if self._consumed_bytes >= OUTPUT_WINDOW_BYTES // 2 and not self.done.is_set():
            credit, self._consumed_bytes = self._consumed_bytes, 0
            await self._channel.send(Kind.CREDIT, self.id, credit.to_bytes(4, "big"))
        else:
            await checkpoint()
        while not self._chunks:
            if self.done.is_set():
                self.check()
                raise StopAsyncIteration
            self._arrived = anyio.Event()
            await self.wait_for(self._arrived)
        chunk = self._chunks.popleft()
        self._consumed_bytes += len(chunk.data)
        self._unread_bytes -= len(chunk.data)
        return chunk

    async def write(self, data: bytes) -> None:
        """Write to standard input; waits while the process does not read.

        Raises:
            SandboxError: The process has closed its input or ended.
        """
        if not await self.feed(self._channel, data):
            self.check()
            raise SandboxError("The process does not read its standard input any more.")

    async def write_eof(self) -> None:
        """Close standard input."""
        if not self.done.is_set():
            await self._channel.send(Kind.STDIN_EOF, self.id)

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the terminal of a process started with ``pty=True``."""
        await self._channel.send(Kind.RESIZE, self.id, struct.pack(">HH", columns, rows))

    async def kill(self, *, grace_s: float = 0.0) -> ExecResult:
        """Kill the tree, with a grace by SIGTERM first, and return the result."""
        if not self.gone.is_set():
            await self.end_tree(self._channel, grace_s=grace_s)
        return self.outcome() if self.done.is_set() else self.synthesized()

    def never_started(self) -> None:
        """Take what a shell would have said instead as the result, and as the rolling tail.

        Raises:
            SandboxError: The requested user does not exist.
        """
        self.result = result = self.outcome()
        if self.request.output == "tail":
            self._tail += result.stdout or result.stderr
            self._total_bytes = len(self._tail)

    async def wait(self) -> ExecResult:
        """Wait until the process itself has ended."""
        await self.done.wait()
        return self.outcome()


class StreamContext:
    """Starts a command when entered, kills what still runs of it when left.

    It holds no cancel scope, so it may be left from another task than the one that entered it.
    """

    def __init__(
        self,
        channel: OutpostChannel,
        request: RunRequest,
        *,
        process: OutpostProcess | None = None,
    ) -> None:
        self._channel = channel
        self._request = request
        self._process = process or OutpostProcess(channel, request)
        self._registration = channel.waiting(self._process)

    async def __aenter__(self) -> OutpostProcess:
        process = self._process
        self._registration.__enter__()
        try:
            await self._request.send(self._channel, process.id)
            await process.started.wait()
            process.check()
            if process.failure is not None:
                process.never_started()
        except BaseException:
            await self._leave()
            raise
        return process

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        try:
            if self._process.error is None and not self._process.gone.is_set():
                await self._process.end_tree(self._channel)
        finally:
            self._registration.__exit__(None, None, None)
