"""The queue between the channel and a vendor's calls."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from hermes_rl.backends.cloud_stream import PIECE_BYTES, UNSENT_BYTES, CloudStream


class Echo(CloudStream):
    """Gives back what it was given; ``open`` lets it take more."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bytes] = []
        self.open = anyio.Event()
        self.hang_up = anyio.Event()
        self.broken = ""
        self.released = 0

    async def put(self, data: bytes) -> None:
        await self.open.wait()
        if self.broken:
            raise OSError(self.broken)
        self.calls.append(data)
        await self.arrived(data)

    async def take_all(self) -> None:
        await self.hang_up.wait()

    async def release(self) -> None:
        self.released += 1


async def test_bytes_go_out_in_order_and_come_back() -> None:
    stream = Echo()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.run)
        for word in (b"a", b"b", b"c"):
            await stream.send(word)
        stream.open.set()
        received = b""
        while len(received) < 3:
            received += await stream.receive()
        assert received == b"abc"
        stream.hang_up.set()
        assert await stream.receive() == b""
    assert stream.released == 1


async def test_a_sender_waits_while_too_much_is_unsent_and_one_call_is_bounded() -> None:
    stream = Echo()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.run)
        await stream.send(b"x" * UNSENT_BYTES)
        with anyio.move_on_after(0.05) as scope:
            await stream.send(b"y")
        assert scope.cancelled_caught
        stream.open.set()
        received = b""
        while len(received) < UNSENT_BYTES + 1:
            received += await stream.receive()
        assert received == b"x" * UNSENT_BYTES + b"y"  # a cancelled sender's bytes are whole
        assert max(map(len, stream.calls)) <= PIECE_BYTES
        await stream.aclose()


async def test_a_broken_stream_fails_senders_and_the_receiver_by_reason() -> None:
    stream = Echo()
    stream.broken = "the vendor hung up"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.run)
        await stream.send(b"a")
        stream.open.set()
        with pytest.raises(ConnectionResetError, match="hung up"):
            await stream.receive()
        with pytest.raises(ConnectionResetError, match="hung up"):
            await stream.send(b"b")
    assert stream.released == 1


async def test_closing_wakes_whoever_waits() -> None:
    stream = Echo()
    received: list[bytes] = []
    refused: list[bool] = []

    async def receive() -> None:
        received.append(await stream.receive())

    async def send() -> None:
        try:
            await stream.send(b"x" * (2 * UNSENT_BYTES))
        except ConnectionResetError:
            refused.append(True)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.run)
            tasks.start_soon(receive)
            tasks.start_soon(send)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            await stream.aclose()
            await stream.aclose()
    assert (received, refused, stream.released) == ([b""], [True], 1)


async def test_one_closed_before_it_runs_is_released_all_the_same() -> None:
    stream = Echo()
    await stream.aclose()
    with anyio.fail_after(60):
        await stream.run()
    assert stream.closed.is_set()
    assert stream.released == 1
