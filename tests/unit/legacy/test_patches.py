"""``asyncio.run`` where a loop runs already."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading

import pytest

from hermes_rl.legacy import apply_patches

VARIABLE = contextvars.ContextVar("variable", default="nothing")


@pytest.fixture(autouse=True)
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "run", asyncio.run)  # Put back in the end.
    apply_patches()


async def where() -> tuple[int, str]:
    await asyncio.sleep(0)
    return threading.get_ident(), VARIABLE.get()


async def test_a_coroutine_runs_to_its_end_inside_a_running_loop() -> None:
    VARIABLE.set("the caller's")
    thread, value = asyncio.run(where())
    assert thread != threading.get_ident()
    assert value == "the caller's"


async def test_it_may_be_nested_and_raises_what_the_coroutine_raises() -> None:
    async def inner() -> None:
        raise KeyError("inside")

    async def outer() -> None:
        asyncio.run(inner())

    with pytest.raises(KeyError, match="inside"):
        asyncio.run(outer())


def test_nothing_changes_where_no_loop_runs() -> None:
    thread, _ = asyncio.run(where())
    assert thread == threading.get_ident()


def test_applying_it_again_changes_nothing() -> None:
    once = asyncio.run
    apply_patches()
    assert asyncio.run is once


async def test_the_place_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            asyncio.run(where())
    (record,) = caplog.records
    assert "test_patches.py" in record.message


async def test_no_thread_is_left() -> None:
    before = threading.active_count()
    asyncio.run(where())
    for thread in threading.enumerate():
        if thread.name.startswith("asyncio.run"):
            thread.join(10)
    assert threading.active_count() <= before
