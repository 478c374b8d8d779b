"""A sandbox to be attacked from inside, and a neighbour whose work must not notice."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from hermes_rl.backends.docker import create_backend
from hermes_rl.sandbox import BackendSettings, Sandbox

from .docker_boxes import box

__all__ = ["attacked", "is_well"]


@asynccontextmanager
async def attacked(settings: BackendSettings, **fields: Any) -> AsyncIterator[Sandbox]:
    """A sandbox to be attacked from inside, with a neighbour at work meanwhile."""
    async with create_backend(settings) as backend:
        victim = await backend.create(box(**fields))
        neighbour = await backend.create(box())
        rounds: list[int] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_work, neighbour, rounds)
            yield victim
            before = len(rounds)
            with anyio.fail_after(60):
                while len(rounds) < before + 3:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        await victim.close()


async def _work(sandbox: Sandbox, rounds: list[int]) -> None:
    data = os.urandom(20_000)
    digest = hashlib.sha256(data).hexdigest()
    while True:
        await sandbox.write("blob", data)
        result = await sandbox.exec("sha256sum blob; exit 3", timeout_s=30)
        assert (result.exit_code, result.text.split()[0]) == (3, digest)
        assert await sandbox.read("blob", max_bytes=len(data)) == data
        rounds.append(len(rounds))
        await anyio.sleep(0.05)


async def is_well(sandbox: Sandbox) -> bool:
    """Say whether the sandbox still runs commands."""
    result = await sandbox.exec("echo well", timeout_s=60)
    return (result.exit_code, result.text) == (0, "well\n")
