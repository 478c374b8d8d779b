"""The real Docker daemon behind a proxy that keeps some of its answers back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteStream, SocketAttribute

from hermes_rl.backends.docker_connection import docker_host

__all__ = ["daemon_that_never_answers"]


@asynccontextmanager
async def daemon_that_never_answers(what: bytes) -> AsyncIterator[str]:
    """Yield an address for ``DOCKER_HOST``; requests with ``what`` in them never reach the daemon.

    Only for a daemon behind a socket of this machine.
    """
    socket = docker_host().removeprefix("unix://")

    async def serve(client: ByteStream) -> None:
        async with (
            client,
            await anyio.connect_unix(socket) as daemon,
            anyio.create_task_group() as group,
        ):
            group.start_soon(_pass_on, client, daemon, what)
            await _pass_on(daemon, client, None)
            group.cancel_scope.cancel()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield f"tcp://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
        group.cancel_scope.cancel()


async def _pass_on(source: ByteStream, target: ByteStream, held_back: bytes | None) -> None:
    """Pass bytes on until one side ends; from a piece with ``held_back`` on, swallow them."""
    try:
        is_held_back = False
        async for piece in source:
            is_held_back = is_held_back or (held_back is not None and held_back in piece)
            if not is_held_back:
                await target.send(piece)
        if not is_held_back:
            await target.send_eof()
    except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        return
