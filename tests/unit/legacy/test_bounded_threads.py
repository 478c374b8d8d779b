"""The pool of daemon threads: bound, context, and an end that never waits for a stuck call."""

from __future__ import annotations

import contextvars
import subprocess
import sys
import threading
import time

import pytest

from hermes_rl.legacy.in_worker.threads import BoundedThreads


def test_no_more_threads_run_than_allowed_and_all_work_is_done() -> None:
    pool = BoundedThreads(3, "t")
    lock, running, most = threading.Lock(), 0, 0
    all_in = threading.Barrier(3)

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if number < 3:
            all_in.wait(10)
        with lock:
            running -= 1
        return number

    futures = [pool.submit(work, number) for number in range(30)]
    assert [future.result(10) for future in futures] == list(range(30))
    assert most == 3
    pool.shutdown()


def test_each_call_has_a_copy_of_its_callers_context() -> None:
    variable = contextvars.ContextVar("variable", default="nothing")
    pool = BoundedThreads(1, "t")

    def change() -> str:
        before = variable.get()
        variable.set("changed in the thread")
        return before

    variable.set("the caller's")
    assert pool.submit(change).result(10) == "the caller's"
    assert pool.submit(change).result(10) == "the caller's"
    assert variable.get() == "the caller's"
    pool.shutdown()


def test_what_a_call_raises_is_raised_where_it_is_waited_for() -> None:
    pool = BoundedThreads(1, "t")
    with pytest.raises(SystemExit):
        pool.submit(sys.exit, 3).result(10)
    assert pool.submit(int, "7").result(10) == 7  # The thread has survived it.
    pool.shutdown()


def test_shutdown_drops_what_has_not_begun_and_join_is_bounded() -> None:
    pool = BoundedThreads(1, "t")
    release, begun = threading.Event(), threading.Event()

    def stuck() -> None:
        begun.set()
        release.wait(10)

    first, second = pool.submit(stuck), pool.submit(int)
    assert begun.wait(10)
    pool.shutdown(wait=False, cancel_futures=True)
    assert second.cancelled()
    assert not pool.join(0.01)
    with pytest.raises(RuntimeError):
        pool.submit(int)
    release.set()
    first.result(10)
    assert pool.join(10)


def test_a_resized_pool_lets_more_run_at_once() -> None:
    pool = BoundedThreads(1, "t")
    both = threading.Barrier(2)
    futures = [pool.submit(both.wait, 10) for _ in range(2)]
    pool.resize(2)
    assert {future.result(10) for future in futures} == {0, 1}
    assert pool._max_workers == pool.max_threads == 2
    with pytest.raises(ValueError, match="at least one"):
        pool.resize(0)
    pool.shutdown()


def test_the_interpreter_ends_although_a_call_is_stuck() -> None:
    code = (
        "import threading\n"
        "from hermes_rl.legacy.in_worker.threads import BoundedThreads\n"
        "BoundedThreads(1, 't').submit(threading.Event().wait, 60)\n"
        "print('end')\n"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50, check=True)
    assert done.stdout == b"end\n"
    assert time.monotonic() - began < 30
