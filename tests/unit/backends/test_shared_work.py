"""Work that many wait for is done once."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from hermes_rl.backends.admission import StartTurns
from hermes_rl.backends.shared_work import Piece, SharedWork
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


async def test_a_wait_for_its_turn_is_not_counted() -> None:
    turns, held = StartTurns(1), anyio.Event()
    async with anyio.create_task_group() as tasks:
        work: SharedWork[str] = SharedWork(tasks)

        async def hold() -> None:
            async with turns.turn():
                held.set()
                await anyio.sleep(0.5)

        async def make(piece: Piece[str]) -> str:
            async with piece.turn(turns):
                return "image"

        tasks.start_soon(hold)
        await held.wait()
        assert await work.get_within(0.1, "key", make) == "image"


async def test_work_that_takes_too_long_goes_on_without_its_place() -> None:
    turns, go_on = StartTurns(1), anyio.Event()
    async with anyio.create_task_group() as tasks:
        work: SharedWork[str] = SharedWork(tasks)

        async def make(piece: Piece[str]) -> str:
            async with piece.turn(turns):
                await go_on.wait()
                return "image"

        with pytest.raises(TimeoutError):
            await work.get_within(0.05, "key", make)
        with anyio.fail_after(60):
            async with turns.turn():
                pass
        go_on.set()
        assert await work.get_within(60, "key", make) == "image"


async def test_what_nobody_waits_for_any_more_when_its_turn_comes_is_not_made() -> None:
    turns, asked, made = StartTurns(1), anyio.Event(), []
    async with anyio.create_task_group() as tasks:
        work: SharedWork[str] = SharedWork(tasks)

        async def make(piece: Piece[str]) -> str:
            asked.set()
            async with piece.turn(turns):
                made.append("x")
                return "image"

        async with turns.turn(), anyio.create_task_group() as impatient:
            impatient.start_soon(work.get_within, 60, "key", make)
            await asked.wait()
            impatient.cancel_scope.cancel()
        while "key" in work._pieces:
            await anyio.lowlevel.checkpoint()
        assert made == []
        assert await work.get_within(60, "key", make) == "image"


async def test_what_is_forgotten_is_made_anew() -> None:
    made: list[str] = []
    async with anyio.create_task_group() as tasks:
        work: SharedWork[str] = SharedWork(tasks)

        async def make() -> str:
            made.append("x")
            return "image"

        for _ in range(2):
            await work.get("key", make)
        work.forget("key")
        work.forget("another")
        await work.get("key", make)
    assert made == ["x", "x"]
