"""Opens a context manager in a task of its own, for fixtures.

pytest-asyncio may run the two halves of an async fixture in different tasks, and a backend holds a
task group, which must be left in the task that entered it::

    @pytest_asyncio.fixture
    async def backend():
        async with hosted(open_backend("mine", settings)) as backend:
            yield backend
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

__all__ = ["hosted"]

T = TypeVar("T")


@asynccontextmanager
async def hosted(manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter ``manager`` in a new task, and leave it there when this context is left."""
    opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    closing = asyncio.Event()

    async def host() -> None:
        try:
            async with manager as value:
                opened.set_result(value)
                await closing.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    # A task group cannot be used: it too would have to be left where it was entered.
    task = asyncio.create_task(host())
    try:
        yield await opened
    finally:
        closing.set()
        await task
