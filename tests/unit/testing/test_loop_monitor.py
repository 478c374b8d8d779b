"""The monitor sees CPU use of callbacks, and only that."""

from __future__ import annotations

import asyncio
import time

import pytest

from hermes_rl.testing.loop_monitor import loop_monitor, watched_callbacks


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
