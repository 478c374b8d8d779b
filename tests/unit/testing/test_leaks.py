"""The census finds each kind of leak."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial

import anyio
import pytest
from anyio import to_thread

from hermes_rl.testing.leaks import leak_census, take_census


async def test_nothing_left_is_no_alarm_although_threads_of_the_pool_idle() -> None:
    async with leak_census():
        await to_thread.run_sync(lambda: None)
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)


async def test_what_ends_within_the_grace_is_no_leak() -> None:
    async with leak_census():
        task = asyncio.create_task(asyncio.sleep(0.1))
    await task


async def test_a_task_left_running_is_found() -> None:
    task = None
    with pytest.raises(AssertionError, match=r"tasks: .*sleep"):
        async with leak_census(grace_s=0.05):
            task = asyncio.create_task(asyncio.sleep(60))
    assert task is not None
    task.cancel()


async def test_a_thread_left_running_is_found() -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="left-behind")
    with pytest.raises(AssertionError, match="threads: left-behind"):
        async with leak_census(grace_s=0.05):
            thread.start()
    end.set()
    thread.join()


async def test_a_busy_thread_of_the_pool_is_found() -> None:
    started, end = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        end.wait()

    async def abandon_a_thread() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(to_thread.run_sync, work, abandon_on_cancel=True))
            while not started.is_set():
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()

    with pytest.raises(AssertionError, match="threads: AnyIO worker thread"):
        async with leak_census(grace_s=0.05):
            await abandon_a_thread()
    end.set()


async def test_an_open_file_is_found() -> None:
    read, write = -1, -1
    with pytest.raises(AssertionError, match=r"files: .*pipe"):
        async with leak_census(grace_s=0.05):
            read, write = os.pipe()
    os.close(read)
    os.close(write)


async def test_a_child_process_is_found_with_its_command() -> None:
    child = None
    with pytest.raises(AssertionError, match=r"processes: .*sleep 60"):
        async with leak_census(grace_s=0.05):
            child = await asyncio.create_subprocess_exec("sleep", "60")
    assert child is not None
    child.kill()
    await child.wait()


async def test_a_census_names_what_is_beyond_an_earlier_one() -> None:
    before = await take_census()
    assert before.beyond(before) == {}
