"""A limiter that a module holds: engines in several threads do not wait for each other for ever."""

import os
import re
import threading
import time
from pathlib import Path

import anyio
import anyio.to_thread

import hermes_rl
from hermes_rl.loop_limiter import LoopLimiter

OF_ONE_LOOP = re.compile(
    r"^\w+[^=\n]*= anyio\.(CapacityLimiter|Condition|Event|Lock|Semaphore)\(", re.M
)


async def _contend(limiter: LoopLimiter, most: list[int]) -> None:
    at_work = 0

    def work() -> None:
        nonlocal at_work
        at_work += 1
        most.append(at_work)
        time.sleep(0.0005)
        at_work -= 1

    async def work_often() -> None:
        for _ in range(40):
            await anyio.to_thread.run_sync(work, limiter=limiter)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(work_often)


def test_loops_that_contend_in_several_threads_all_end() -> None:
    limiter, most = LoopLimiter(1), [[], []]  # type: LoopLimiter, list[list[int]]
    threads = [
        threading.Thread(target=anyio.run, args=(_contend, limiter, seen), daemon=True)
        for seen in most
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert [len(seen) for seen in most] == [320, 320]
    assert {max(seen) for seen in most} == {1}


def test_it_serves_one_loop_after_another() -> None:
    limiter = LoopLimiter(2)
    for _ in range(3):
        seen: list[int] = []
        anyio.run(_contend, limiter, seen)
        assert max(seen) <= 2


def test_no_module_holds_what_belongs_to_one_loop() -> None:
    package = Path(hermes_rl.__file__).parent
    modules = [
        Path(folder, name)
        for folder, _, names in os.walk(package, followlinks=True)
        for name in names
        if name.endswith(".py")
    ]
    assert len(modules) > 300
    assert [path for path in modules if OF_ONE_LOOP.search(path.read_text())] == []
