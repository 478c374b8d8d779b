"""Limits on starting and removing, and who goes first."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from hermes_rl.backends.admission import Admission, StartTurns

SETTLE = 10
"""Turns of the loop after which nothing moves by itself."""


async def _settle() -> None:
    for _ in range(SETTLE):
        await checkpoint()


class _Crowd:
    """Operations that hold their place until told to let go."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.inside: list[str] = []
        self.release = anyio.Event()

    async def start(self, name: str = "start") -> None:
        async with self.admission.start():
            await self._hold(name)

    async def removal(self, name: str = "removal") -> None:
        async with self.admission.removal():
            await self._hold(name)

    async def _hold(self, name: str) -> None:
        self.inside.append(name)
        await self.release.wait()


@pytest.mark.parametrize("kind", ["start", "removal"])
async def test_no_more_than_the_limit_run_at_once(kind: str) -> None:
    crowd = _Crowd(Admission(starting=2, removing=2))
    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(getattr(crowd, kind))
        await _settle()
        assert crowd.inside == [kind, kind]
        crowd.release.set()
    assert crowd.inside == [kind] * 5


async def test_a_full_queue_of_starts_does_not_hold_up_a_removal() -> None:
    crowd = _Crowd(Admission(starting=1, removing=1))
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(crowd.start)
        await _settle()
        tasks.start_soon(crowd.removal)
        await _settle()
        assert crowd.inside == ["start", "removal"]
        crowd.release.set()


async def test_no_start_begins_while_a_removal_waits() -> None:
    admission = Admission(starting=4, removing=1)
    first, second = _Crowd(admission), _Crowd(admission)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.removal)
        await _settle()
        tasks.start_soon(second.removal)
        await _settle()
        tasks.start_soon(second.start)
        await _settle()
        assert (first.inside, second.inside) == (["removal"], [])
        first.release.set()
        await _settle()
        assert second.inside == ["removal", "start"]
        second.release.set()


async def test_a_cancelled_removal_lets_starts_go_on() -> None:
    admission = Admission(starting=1, removing=1)
    first, second = _Crowd(admission), _Crowd(admission)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first.removal)
        await _settle()
        async with anyio.create_task_group() as waiting:
            waiting.start_soon(second.removal)
            await _settle()
            waiting.cancel_scope.cancel()
        tasks.start_soon(second.start)
        await _settle()
        assert second.inside == ["start"]
        first.release.set()
        second.release.set()


async def test_one_task_may_remove_two_at_once() -> None:
    admission = Admission(starting=1, removing=2)
    async with admission.removal(), admission.removal():
        pass


async def test_a_turn_given_back_lets_another_start() -> None:
    starts = StartTurns(1)
    async with starts.turn() as first:
        with anyio.move_on_after(0) as refused:
            async with starts.turn():
                pass
        assert refused.cancelled_caught
        first.give_back()
        async with starts.turn():
            first.give_back()  # it has none to give back any more
            with anyio.move_on_after(0) as refused:
                async with starts.turn():
                    pass
            assert refused.cancelled_caught


async def test_a_turn_that_fails_is_given_back() -> None:
    starts = StartTurns(1)
    with pytest.raises(RuntimeError):
        async with starts.turn():
            raise RuntimeError
    async with starts.turn():
        pass
