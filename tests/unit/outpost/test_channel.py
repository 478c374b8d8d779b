"""The engine's end of the channel, against a peer that does whatever the test wants."""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from hermes_rl.backends.outpost import channel as channel_module
from hermes_rl.backends.outpost.answers import Reply
from hermes_rl.backends.outpost.channel import Loss, OutpostChannel
from hermes_rl.backends.outpost.frames import (
    MAX_PAYLOAD_BYTES,
    Kind,
    frame,
    pack_fields,
    unpack_fields,
)
from hermes_rl.backends.outpost.process import (
    OUTPUT_SLACK_BYTES,
    Execution,
    StreamContext,
    run_to_end,
)
from hermes_rl.backends.outpost.request import OUTPUT_WINDOW_BYTES, RunRequest
from hermes_rl.errors import ChannelLost, SandboxError, SandboxGone

HELLO = pack_fields(
    {
        "version": 1,
        "variant": "test",
        "pid": 1,
        "uid": 0,
        "shell": "bash",
        "cwd": "/",
        "home": "/",
        "adopts": 1,
    }
)
RESULT = {"code": 0, "signal": 0, "timed_out": 0, "duration_us": 5, "background": 0}


class Peer:
    """A transport whose other end is the test: ``sent`` holds frames, ``say`` sends some."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, int, bytes]] = []
        self.on_frame: Callable[[int, int, bytes], None] = lambda kind, id, payload: None
        self.is_closed = False
        self._give, self._take = anyio.create_memory_object_stream[bytes](100)

    async def send(self, data: bytes) -> None:
        kind, id, length = struct.unpack(">BII", data[:9])
        assert len(data) == 9 + length
        self.sent.append((kind, id, data[9:]))
        self.on_frame(kind, id, data[9:])
        await anyio.lowlevel.checkpoint()

    async def receive(self) -> bytes:
        try:
            return await self._take.receive()
        except anyio.EndOfStream:
            return b""

    async def aclose(self) -> None:
        self.is_closed = True
        self._give.close()

    def say(self, data: bytes) -> None:
        self._give.send_nowait(data)

    def kinds(self) -> list[Kind]:
        return [Kind(kind) for kind, _, _ in self.sent]


@asynccontextmanager
async def opened(
    explain: Callable[[Loss], SandboxError] | None = None,
) -> AsyncIterator[tuple[OutpostChannel, Peer]]:
    peer = Peer()

    async def explained(loss: Loss) -> SandboxError:
        assert explain is not None
        return explain(loss)

    channel = OutpostChannel(peer, explain=explained) if explain else OutpostChannel(peer)
    async with anyio.create_task_group() as group:
        group.start_soon(channel.run)
        try:
            yield channel, peer
        finally:
            await peer.aclose()
            with anyio.fail_after(60, shield=True):
                await channel.ended.wait()


async def until(check: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while not check():
            await anyio.sleep(0.001)


async def test_hello_is_understood() -> None:
    async with opened() as (channel, peer):
        peer.say(frame(Kind.HELLO, 0, HELLO))
        hello = await channel.wait_hello(timeout_s=5)
    assert (hello.shell, hello.pid, hello.adopts) == ("bash", 1, True)


async def test_no_hello_is_a_lost_channel() -> None:
    async with opened() as (channel, _):
        with pytest.raises(ChannelLost, match=r"within 0\.01 s"):
            await channel.wait_hello(timeout_s=0.01)


@pytest.mark.parametrize(
    "data",
    [
        b"Welcome to Ubuntu!\n",
        frame(Kind.HELLO, 0, pack_fields({"version": 2})),
        frame(Kind.HELLO, 0, b"\xff"),
        frame(Kind.HELLO, 0, pack_fields({"version": 1})),
        frame(Kind.HELLO, 0, HELLO) + frame(Kind.HELLO, 0, HELLO),
        frame(Kind.RESULT, 0, b""),
    ],
)
async def test_a_wrong_hello_ends_the_channel_as_forged(data: bytes) -> None:
    losses: list[Loss] = []

    def explain(loss: Loss) -> SandboxError:
        losses.append(loss)
        return SandboxGone("gone")

    async with opened(explain) as (channel, peer):
        peer.say(data)
        await channel.ended.wait()
        with pytest.raises(SandboxGone):
            channel.check()
    assert [loss.is_forged for loss in losses] == [True]


async def test_the_end_of_the_stream_wakes_every_waiter_with_an_error_of_its_own() -> None:
    errors: list[SandboxError] = []

    async def ask(channel: OutpostChannel) -> None:
        try:
            await channel.ask(Kind.PING)
        except SandboxError as error:
            errors.append(error)

    async with opened(lambda loss: SandboxGone("oom", cause="oom", by_agent=True)) as (
        channel,
        peer,
    ):
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask, channel)
            await until(lambda: len(peer.sent) == 3)
            await peer.aclose()
        with pytest.raises(SandboxGone):
            await channel.ask(Kind.PING)
    assert [(type(e), e.cause, e.by_agent) for e in errors if isinstance(e, SandboxGone)] == [
        (SandboxGone, "oom", True)
    ] * 3
    assert len({id(error) for error in errors}) == 3


async def test_the_last_word_of_the_outpost_reaches_the_backend() -> None:
    losses: list[Loss] = []

    def explain(loss: Loss) -> SandboxError:
        losses.append(loss)
        return SandboxGone("expired", cause="expired")

    async with opened(explain) as (channel, peer):
        peer.say(frame(Kind.BYE, 0, b"expired"))
        await peer.aclose()
        await channel.ended.wait()
    assert losses[0].bye == "expired"
    assert not losses[0].is_forged


@pytest.mark.parametrize(
    ("loss", "is_by_agent"),
    [
        (Loss("not a frame", is_forged=True), True),
        (Loss("end of stream", bye="garbage"), True),
        (Loss("end of stream", bye="expired"), False),
        (Loss("end of stream"), False),
    ],
)
def test_frames_that_neither_end_would_send_are_the_agents(loss: Loss, is_by_agent: bool) -> None:
    assert loss.is_by_agent is is_by_agent


async def test_a_backend_that_cannot_explain_still_gives_an_error() -> None:
    def explain(loss: Loss) -> SandboxError:
        raise RuntimeError("the daemon is away")

    async with opened(explain) as (channel, peer):
        await peer.aclose()
        await channel.ended.wait()
        with pytest.raises(ChannelLost, match="the daemon is away"):
            channel.check()


async def test_replies_to_unknown_ids_are_ignored() -> None:
    async with opened() as (channel, peer):
        peer.say(frame(Kind.RESULT, 999, b"\xff") + frame(Kind.STDOUT, 998, b"stale"))
        peer.on_frame = lambda kind, id, payload: peer.say(frame(Kind.PONG, id))
        assert await channel.ping(timeout_s=5) < 5


async def test_more_data_than_asked_for_ends_the_channel() -> None:
    async with opened() as (channel, peer):
        peer.on_frame = lambda kind, id, payload: peer.say(frame(Kind.CHUNK, id, bytes(101)))
        with pytest.raises(SandboxGone, match="more data"):
            await channel.ask(Kind.READ, limit_bytes=100)


async def test_output_beyond_the_credit_ends_the_channel() -> None:
    async with opened() as (channel, peer):
        pieces = (OUTPUT_WINDOW_BYTES + OUTPUT_SLACK_BYTES) // 1_000_000 + 2

        def flood(kind: int, id: int, payload: bytes) -> None:
            if kind == Kind.RUN:
                peer.say(frame(Kind.STARTED, id, pack_fields({"pid": 7})))
                for _ in range(pieces):
                    peer.say(frame(Kind.STDOUT, id, bytes(1_000_000)))

        peer.on_frame = flood
        async with StreamContext(channel, RunRequest(cmd="yes", output="flow")) as process:
            with pytest.raises(SandboxGone, match="credit"):
                await process.wait()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {**RESULT, "code": "many"},
        {**RESULT, "duration_us": ""},
        {key: value for key, value in RESULT.items() if key != "signal"},
    ],
)
async def test_a_malformed_result_ends_the_channel(fields: dict[str, bytes | str | int]) -> None:
    async with opened() as (channel, peer):
        peer.on_frame = lambda kind, id, payload: peer.say(
            frame(Kind.RESULT, id, pack_fields(fields))
        )
        with pytest.raises(SandboxGone, match="broke the protocol"):
            await run_to_end(channel, RunRequest(cmd="x", timeout_s=5))


async def test_a_failure_to_start_is_the_shells_exit_code() -> None:
    async with opened() as (channel, peer):
        failure = pack_fields({"errno": 127, "text": "x: command not found", "reason": "start"})
        peer.on_frame = lambda kind, id, payload: peer.say(frame(Kind.FAILED, id, failure))
        result = await run_to_end(channel, RunRequest(cmd=["x"], timeout_s=5))
        merged = await run_to_end(channel, RunRequest(cmd=["x"], timeout_s=5, merge_stderr=True))
    assert (result.exit_code, result.stderr) == (127, b"hermes: x: command not found\n")
    assert (merged.exit_code, merged.stdout) == (127, b"hermes: x: command not found\n")


async def test_an_outpost_that_never_answers_is_given_up_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hermes_rl.backends.outpost.process.DEADLINE_SLACK_S", 0.05)
    monkeypatch.setattr("hermes_rl.backends.outpost.process.KILL_WAIT_S", 0.05)
    async with opened() as (channel, peer):
        result = await run_to_end(channel, RunRequest(cmd="x", timeout_s=0.01))
        assert (result.timed_out, result.exit_code) == (True, 124)
        assert peer.kinds() == [Kind.RUN, Kind.KILL]


@pytest.mark.parametrize(
    ("signal", "code", "expected"), [(9, 137, (124, True)), (0, 3, (3, False))]
)
async def test_what_the_engine_ends_itself_at_the_deadline_has_timed_out(
    signal: int, code: int, expected: tuple[int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outpost that gets no turn begins to count the seconds too late."""
    monkeypatch.setattr("hermes_rl.backends.outpost.process.DEADLINE_SLACK_S", 0.05)
    async with opened() as (channel, peer):

        def end(kind: int, id: int, payload: bytes) -> None:
            if kind == Kind.KILL:
                fields = {**RESULT, "signal": signal, "code": code, "out": b"so far"}
                peer.say(frame(Kind.RESULT, id, pack_fields(fields)) + frame(Kind.DONE, id))

        peer.on_frame = end
        result = await run_to_end(channel, RunRequest(cmd="x", timeout_s=0.01))
    assert (result.exit_code, result.timed_out) == expected
    assert result.stdout == b"so far"


async def test_a_cancelled_command_is_killed_and_waited_for() -> None:
    async with opened() as (channel, peer):

        def die(kind: int, id: int, payload: bytes) -> None:
            if kind == Kind.KILL:
                result = frame(Kind.RESULT, id, pack_fields({**RESULT, "signal": 9}))
                peer.say(result + frame(Kind.DONE, id))

        peer.on_frame = die
        with anyio.move_on_after(0.05) as scope:
            await run_to_end(channel, RunRequest(cmd="x", timeout_s=60))
        assert scope.cancelled_caught
        assert peer.kinds() == [Kind.RUN, Kind.KILL]


async def test_a_cancelled_request_is_called_off() -> None:
    async with opened() as (channel, peer):
        with anyio.move_on_after(0.02):
            await channel.ask(Kind.READ, limit_bytes=10)
        assert peer.kinds() == [Kind.READ, Kind.KILL]


async def test_input_waits_for_room_and_stops_when_nobody_reads() -> None:
    async with opened() as (channel, peer):
        execution = Execution(RunRequest(cmd="x"))
        with channel.waiting(execution) as id:
            fed: list[bool] = []

            async def feed() -> None:
                fed.append(await execution.feed(channel, bytes(400_000)))

            async with anyio.create_task_group() as group:
                group.start_soon(feed)
                await until(lambda: sum(len(data) for _, _, data in peer.sent) == 256 * 1024)
                peer.say(frame(Kind.ROOM, id, struct.pack(">I", 1000)))
                await until(lambda: sum(len(data) for _, _, data in peer.sent) == 256 * 1024 + 1000)
                peer.say(frame(Kind.ROOM, id, struct.pack(">I", 0)))
        assert fed == [False]


async def test_a_silent_peer_is_pinged_and_then_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "PING_INTERVAL_S", 0.01)
    monkeypatch.setattr(channel_module, "PING_TIMEOUT_S", 0.01)
    async with opened() as (channel, peer):
        with anyio.fail_after(60):
            await channel.ended.wait()
        assert peer.kinds().count(Kind.PING) == 2


async def test_a_paused_sandbox_is_not_pinged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "PING_INTERVAL_S", 0.01)
    async with opened() as (channel, peer):
        channel.is_paused = True
        await anyio.sleep(0.1)
        assert peer.sent == []
        assert not channel.ended.is_set()


async def test_a_flood_of_small_frames_lets_others_run() -> None:
    async with opened() as (channel, peer):
        reply = Reply(1 << 30)
        with channel.waiting(reply) as id:
            turns = 0

            async def count() -> None:
                nonlocal turns
                while not reply.done.is_set():
                    turns += 1
                    await anyio.lowlevel.checkpoint()

            async with anyio.create_task_group() as group:
                group.start_soon(count)
                peer.say(frame(Kind.CHUNK, id, b"x") * 20_000 + frame(Kind.DONE, id))
        assert turns > 20
        assert sum(map(len, reply.chunks)) == 20_000


async def test_a_large_command_travels_in_pieces() -> None:
    async with opened() as (channel, peer):

        def answer(kind: int, id: int, payload: bytes) -> None:
            if kind == Kind.END:
                peer.say(frame(Kind.RESULT, id, pack_fields(RESULT)))

        peer.on_frame = answer
        text = "x" * 2_000_000
        await run_to_end(channel, RunRequest(cmd=text, timeout_s=5))
    assert set(peer.kinds()) == {Kind.RUN, Kind.DATA, Kind.END}
    payload = b"".join(data for _, _, data in peer.sent)
    assert unpack_fields(payload)["cmd"].decode() == text


async def test_more_than_a_frame_holds_is_refused_and_harms_nothing() -> None:
    async with opened() as (channel, peer):
        with pytest.raises(SandboxError, match="a path or a name is too long"):
            await channel.send(Kind.RUN, 1, bytes(MAX_PAYLOAD_BYTES + 1))
        await channel.send(Kind.RUN, 1, bytes(MAX_PAYLOAD_BYTES))
        assert len(peer.sent) == 1


async def test_a_forger_is_not_waited_for_while_its_end_is_explained() -> None:
    closed_then: list[bool] = []

    def explain(loss: Loss) -> SandboxError:
        closed_then.append(peer.is_closed)
        return SandboxGone("explained", by_agent=loss.is_by_agent)

    async with opened(explain) as (channel, peer):
        peer.say(b"\xff" * 9)
        await channel.ended.wait()
        assert closed_then == [True]


async def test_whoever_forges_is_to_blame_even_if_its_end_cannot_be_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel_module, "EXPLAIN_LIMIT_S", 0.05)
    peer = Peer()

    async def never(loss: Loss) -> SandboxError:
        await anyio.sleep(60)
        raise AssertionError

    channel = OutpostChannel(peer, explain=never)
    peer.say(b"\xff" * 9)
    await channel.run()
    with pytest.raises(SandboxGone, match="broke the protocol") as gone:
        channel.check()
    assert (gone.value.by_agent, gone.value.retryable) == (True, False)


def test_a_deadline_may_be_endless_but_must_be_a_number() -> None:
    endless = RunRequest(cmd="x", timeout_s=math.inf)
    assert endless.fields()["timeout_ms"] == 14 * 86400 * 1000
    assert RunRequest(cmd="x", timeout_s=0.5).fields()["timeout_ms"] == 500
    with pytest.raises(ValueError, match=r"math\.inf for no deadline"):
        RunRequest(cmd="x", timeout_s=math.nan)
