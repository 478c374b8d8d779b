"""A deadline of work stands still while the work waits."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import pytest

from hermes_rl.work_deadline import WorkDeadline, note_waited, waiting

WORK_S = 0.05


def deadline_of(seconds: float | None = WORK_S, allowance_s: float = 10.0) -> WorkDeadline:
    return WorkDeadline(seconds, allowance_s=allowance_s, clock=time.monotonic)


async def test_work_is_cut_off_at_the_deadline() -> None:
    deadline = deadline_of()
    with deadline.running():
        await anyio.sleep_forever()
    assert deadline.was_cut
    assert deadline.is_over
    assert deadline.unforgiven_s == 0


async def test_waiting_does_not_count() -> None:
    deadline = deadline_of()
    with deadline.running():
        with waiting():
            await anyio.sleep(2 * WORK_S)
        assert not deadline.is_over
        await anyio.sleep(WORK_S / 5)
    assert not deadline.was_cut
    assert deadline.waited_s == pytest.approx(2 * WORK_S, abs=WORK_S)


async def test_work_after_a_wait_has_what_was_left_of_its_time() -> None:
    deadline = deadline_of()
    with deadline.running():
        with waiting():
            await anyio.sleep(2 * WORK_S)
        await anyio.sleep_forever()
    assert deadline.was_cut
    assert deadline.unforgiven_s == 0


async def test_a_wait_beyond_the_allowance_is_cut_off_and_known() -> None:
    deadline = deadline_of(allowance_s=WORK_S)
    started_at = anyio.current_time()
    with deadline.running(), waiting():
        await anyio.sleep_forever()
    assert deadline.was_cut
    assert 2 * WORK_S <= anyio.current_time() - started_at < 20 * WORK_S
    assert deadline.forgiven_s == WORK_S
    assert deadline.unforgiven_s >= WORK_S / 2


async def test_without_an_allowance_waiting_counts_like_work() -> None:
    deadline = deadline_of(allowance_s=0)
    with deadline.running(), waiting():
        await anyio.sleep_forever()
    assert deadline.was_cut
    assert deadline.unforgiven_s == 0


async def test_time_that_turned_out_to_be_a_wait_is_given_back() -> None:
    deadline = deadline_of()
    with deadline.running():
        note_waited(1.0)
        await anyio.sleep(2 * WORK_S)
        assert not deadline.is_over
    assert not deadline.was_cut


async def test_nested_waits_count_once() -> None:
    deadline = deadline_of()
    with deadline.running(), waiting(), waiting():
        await anyio.sleep(WORK_S)
    assert deadline.waited_s < 2 * WORK_S


async def test_without_a_deadline_around_it_a_wait_is_just_a_wait() -> None:
    with waiting():
        note_waited(1.0)
        await anyio.lowlevel.checkpoint()


async def test_no_deadline_never_cuts() -> None:
    deadline = deadline_of(None)
    with deadline.running():
        with waiting():
            await anyio.lowlevel.checkpoint()
        assert not deadline.is_over
    assert not deadline.was_cut


async def test_two_deadlines_side_by_side_do_not_share_their_waits() -> None:
    deadlines = [deadline_of(), deadline_of()]

    async def wait() -> None:
        with deadlines[0].running(), waiting():
            await anyio.sleep(3 * WORK_S)

    async def work() -> None:
        with deadlines[1].running():
            await anyio.sleep(3 * WORK_S)

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        group.start_soon(work)
    assert [deadline.was_cut for deadline in deadlines] == [False, True]
