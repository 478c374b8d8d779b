"""Work that many wait for is done once."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from hermes_rl.backends.shared_work import SharedWork
from hermes_rl.errors import ImageNotFound, SandboxError


async def test_many_want_it_and_it_is_made_once() -> None:
    made: list[str] = []
    got: list[str] = []
    async with anyio.create_task_group() as tasks:
        work: SharedWork[str] = SharedWork(tasks)

        async def make() -> str:
            await anyio.lowlevel.checkpoint()
            made.append("x")
            return "image"

        async def want() -> None:
            got.append(await work.get("key", make))

        async with anyio.create_task_group() as wanting:
            for _ in range(5):
                wanting.start_soon(want)
    assert (made, got) == (["x"], ["image"] * 5)


async def test_one_that_stops_waiting_does_not_stop_it() -> None:
    begun, go_on = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        work: SharedWork[str] = SharedWork(tasks)

        async def make() -> str:
            begun.set()
            await go_on.wait()
            return "image"

        async with anyio.create_task_group() as impatient:
            impatient.start_soon(work.get, "key", make)
            await begun.wait()
            impatient.cancel_scope.cancel()
        go_on.set()
        assert await work.get("key", make) == "image"


async def test_a_failure_is_told_to_all_and_not_remembered() -> None:
    outcomes: list[Exception | str] = [ImageNotFound("none"), "image"]
    async with anyio.create_task_group() as tasks:
        work: SharedWork[str] = SharedWork(tasks)

        async def make() -> str:
            outcome = outcomes.pop(0)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        with pytest.raises(ImageNotFound, match="none"):
            await work.get("key", make)
        assert await work.get("key", make) == "image"


async def test_what_is_no_error_of_ours_becomes_one() -> None:
    async with anyio.create_task_group() as tasks:
        work: SharedWork[str] = SharedWork(tasks)

        async def make() -> str:
            raise KeyError("surprise")

        with pytest.raises(SandboxError, match="surprise"):
            await work.get("key", make)
