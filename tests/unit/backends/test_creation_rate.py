"""The token bucket, on a clock of its own."""

from __future__ import annotations

import pytest

from hermes_rl.backends.creation_rate import CreationRate


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    rate = CreationRate(2.0, burst=3, now=clock)
    for _ in range(3):
        await rate.take()
    assert rate.wait_s() == pytest.approx(0.5)
    clock.now_s += 0.5
    await rate.take()
    assert rate.wait_s() == pytest.approx(0.5)


async def test_a_long_pause_saves_no_more_than_a_burst() -> None:
    clock = Clock()
    rate = CreationRate(10.0, burst=2, now=clock)
    await rate.take()
    clock.now_s += 3600
    for _ in range(2):
        await rate.take()
    assert rate.wait_s() > 0


async def test_a_refusal_empties_the_bucket_and_closes_it() -> None:
    clock = Clock()
    rate = CreationRate(10.0, burst=5, now=clock)
    rate.refused(7.0)
    assert rate.wait_s() == pytest.approx(7.0)
    clock.now_s += 7.0
    for _ in range(5):
        await rate.take()
    assert rate.wait_s() > 0


async def test_a_later_shorter_refusal_does_not_open_it_early() -> None:
    clock = Clock()
    rate = CreationRate(10.0, burst=5, now=clock)
    rate.refused(7.0)
    clock.now_s += 1.0
    rate.refused(2.0)
    assert rate.wait_s() == pytest.approx(6.0)
