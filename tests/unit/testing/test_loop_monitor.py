"""The monitor sees CPU use of callbacks, and only that."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from hermes_rl.testing.loop_monitor import (
    loop_monitor,
    run_without_long_callbacks,
    watched_callbacks,
)


def burn(cpu_s: float) -> None:
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        pass


def test_a_callback_that_burns_cpu_is_reported_by_name() -> None:
    async def busy_coroutine() -> None:
        await asyncio.sleep(0)
        burn(0.03)

    with pytest.raises(AssertionError, match=r"ms of CPU in .*busy_coroutine"), loop_monitor():
        asyncio.run(busy_coroutine())


def test_waiting_and_many_short_callbacks_are_no_alarm() -> None:
    async def main() -> None:
        for _ in range(20):
            burn(0.001)
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)

    with loop_monitor():
        asyncio.run(main())


def test_the_loop_is_left_as_it_was() -> None:
    original = asyncio.Handle._run
    with watched_callbacks() as busy:
        assert asyncio.Handle._run is not original
    assert asyncio.Handle._run is original
    assert busy == []


def busy_for(*spans_s: float) -> Callable[[], Awaitable[int]]:
    """Return work that burns CPU once per call, each time as long as the next span says."""
    left = list(spans_s)

    async def work() -> int:
        await asyncio.sleep(0)
        burn(left.pop(0))
        return len(left)

    return work


async def test_work_that_blocks_once_but_not_again_was_disturbed() -> None:
    assert await run_without_long_callbacks(busy_for(0.05, 0.05, 0.0), tries=3) == 0


async def test_work_that_blocks_in_every_try_is_reported() -> None:
    with pytest.raises(AssertionError, match=r"each of 3 tries: 1 callbacks .* ms of CPU"):
        await run_without_long_callbacks(busy_for(0.05, 0.05, 0.05), tries=3)


async def test_callbacks_that_do_not_count_are_left_out() -> None:
    task = asyncio.current_task()
    assert task is not None
    name = task.get_name()
    assert await run_without_long_callbacks(busy_for(0.05), tries=1, ignored=name) == 0


def test_more_spikes_than_allowed_are_an_alarm() -> None:
    async def main(*spans_s: float) -> None:
        for span_s in spans_s:
            await asyncio.sleep(0)
            burn(span_s)

    with loop_monitor(spikes=1):
        asyncio.run(main(0.05))
    with pytest.raises(AssertionError, match="2 callbacks"), loop_monitor(spikes=1):
        asyncio.run(main(0.05, 0.05))
