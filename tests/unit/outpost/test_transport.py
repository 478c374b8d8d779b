"""Streams to an outpost: a socket, or the two pipes of a child."""

import asyncio

import anyio

from hermes_rl.backends.outpost.transport import SocketTransport


async def _child(*argv: str) -> tuple[asyncio.subprocess.Process, SocketTransport]:
    process = await asyncio.create_subprocess_exec(*argv, stdin=-1, stdout=-1)
    assert process.stdin is not None
    assert process.stdout is not None
    return process, SocketTransport(process.stdout, process.stdin)


async def test_pipes_of_a_child_carry_bytes_both_ways() -> None:
    process, transport = await _child("cat")
    await transport.send(b"there and back")
    assert await transport.receive() == b"there and back"
    await transport.aclose()
    assert await process.wait() == 0


async def test_pipes_can_be_closed_again() -> None:
    process, transport = await _child("cat")
    await transport.aclose()
    await transport.aclose()
    await process.wait()
    await transport.aclose()


async def test_pipes_of_a_dead_child_can_be_closed() -> None:
    process, transport = await _child("true")
    with anyio.fail_after(60):
        assert await transport.receive() == b""
        await process.wait()
    await transport.aclose()
