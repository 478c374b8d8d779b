"""Context managers in a task of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from hermes_rl.testing.hosting import hosted


@asynccontextmanager
async def _with_task_group(events: list[str]) -> AsyncIterator[str]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep_forever)
        events.append("open")
        yield "value"
        tasks.cancel_scope.cancel()
    events.append("closed")


async def test_it_may_be_left_from_another_task() -> None:
    events: list[str] = []
    context = hosted(_with_task_group(events))
    assert await asyncio.create_task(context.__aenter__()) == "value"
    assert events == ["open"]
    await asyncio.create_task(context.__aexit__(None, None, None))
    assert events == ["open", "closed"]


async def test_what_fails_to_open_raises() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise KeyError("x")
        yield

    with pytest.raises(KeyError):
        async with hosted(broken()):
            pass


async def test_what_fails_to_close_raises() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        yield
        raise KeyError("x")

    with pytest.raises(KeyError):
        async with hosted(broken()):
            pass
