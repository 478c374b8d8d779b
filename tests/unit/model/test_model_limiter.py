"""The adaptive limit: pure logic, no clock, no network."""

import anyio
import pytest

from hermes_rl.model.limiter import AdaptiveLimiter, Outcome, Permit


async def fill(limiter: AdaptiveLimiter) -> list[Permit]:
    """Take every permit there is."""
    return [await limiter.acquire() for _ in range(limiter.limit - limiter.in_flight)]


def finish(permits: list[Permit], outcome: Outcome) -> None:
    for permit in permits:
        permit.outcome = outcome
        permit.release()


async def test_under_full_load_the_limit_doubles_per_round_until_the_first_refusal() -> None:
    limiter = AdaptiveLimiter(1000, start=10)
    finish(await fill(limiter), Outcome.NEUTRAL)
    running = await fill(limiter)
    for _ in range(2):
        before = limiter.limit
        for _ in range(before):
            finish([running.pop()], Outcome.SUCCESS)
            running += await fill(limiter)
        assert limiter.limit == 2 * before
    finish(running, Outcome.NEUTRAL)


async def test_after_a_refusal_a_round_adds_five_percent() -> None:
    limiter = AdaptiveLimiter(1000, start=200)
    permits = await fill(limiter)
    finish(permits[:1], Outcome.RATE_LIMITED)
    finish(permits[1:], Outcome.NEUTRAL)
    after_cut = limiter.limit
    assert after_cut == 140
    permits = await fill(limiter)
    finish(permits, Outcome.SUCCESS)
    assert after_cut < limiter.limit <= after_cut * 1.06


async def test_one_episode_of_refusals_cuts_once() -> None:
    limiter = AdaptiveLimiter(100, start=100)
    finish(await fill(limiter), Outcome.RATE_LIMITED)
    assert limiter.limit == 70
    assert limiter.episodes == 1


async def test_a_refusal_of_a_request_begun_after_the_cut_is_a_new_episode() -> None:
    limiter = AdaptiveLimiter(100, start=100)
    finish(await fill(limiter), Outcome.RATE_LIMITED)
    finish(await fill(limiter), Outcome.RATE_LIMITED)
    assert limiter.episodes == 2
    assert limiter.limit == 49


async def test_successes_begun_before_the_cut_do_not_grow_the_limit() -> None:
    limiter = AdaptiveLimiter(100, start=100)
    permits = await fill(limiter)
    finish(permits[:1], Outcome.RATE_LIMITED)
    finish(permits[1:], Outcome.SUCCESS)
    assert limiter.limit == 70


async def test_an_unused_limit_is_cut_deeper_but_at_most_by_half_of_the_use() -> None:
    limiter = AdaptiveLimiter(500, start=500)
    permits = [await limiter.acquire() for _ in range(10)]
    finish(permits[:1], Outcome.RATE_LIMITED)
    assert limiter.limit == 175
    permits = await fill(limiter)
    finish(permits[:1], Outcome.RATE_LIMITED)
    assert limiter.limit == 122


async def test_an_unused_limit_does_not_grow() -> None:
    limiter = AdaptiveLimiter(1000, start=50)
    for _ in range(200):
        finish([await limiter.acquire()], Outcome.SUCCESS)
    assert limiter.limit == 50


async def test_failures_other_than_refusals_leave_the_limit_alone() -> None:
    limiter = AdaptiveLimiter(100, start=20)
    finish(await fill(limiter), Outcome.NEUTRAL)
    assert limiter.limit == 20


async def test_the_limit_stays_between_one_and_its_maximum() -> None:
    limiter = AdaptiveLimiter(8, start=8)
    for _ in range(20):
        finish([await limiter.acquire()], Outcome.RATE_LIMITED)
    assert limiter.limit == 1
    for _ in range(2000):
        finish(await fill(limiter), Outcome.SUCCESS)
    assert limiter.limit == 8


async def test_growth_lets_waiting_requests_in() -> None:
    limiter = AdaptiveLimiter(10, start=1)
    running: list[Permit] = []

    async def take() -> None:
        running.append(await limiter.acquire())

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(take)
        await anyio.wait_all_tasks_blocked()
        assert (limiter.in_flight, limiter.waiting, len(running)) == (1, 2, 1)
        finish([running[0]], Outcome.SUCCESS)
        await anyio.wait_all_tasks_blocked()
        assert (limiter.limit, limiter.in_flight, limiter.waiting) == (2, 2, 0)
    finish(running[1:], Outcome.NEUTRAL)
    assert limiter.in_flight == 0


async def test_a_cancelled_waiter_takes_no_permit() -> None:
    limiter = AdaptiveLimiter(1, start=1)
    held = await limiter.acquire()
    with anyio.move_on_after(0):
        await limiter.acquire()
    assert limiter.waiting == 0
    held.release()
    assert limiter.in_flight == 0
    with anyio.fail_after(1):
        (await limiter.acquire()).release()


def test_a_maximum_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        AdaptiveLimiter(0)
