"""An author's exit is an error; what else ends a program or a task is let through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hermes_rl.author_code import exits_as, guard_child_tasks
from hermes_rl.errors import RewardError


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(9),
        BaseExceptionGroup("", [SystemExit(9)]),
        BaseExceptionGroup("", [ValueError(), BaseExceptionGroup("", [SystemExit(9)])]),
    ],
)
def test_an_exit_is_the_error_that_was_asked_for(error: BaseException) -> None:
    said = r"The reward code called sys.exit\(9\)"
    with pytest.raises(RewardError, match=said) as raised, exits_as(RewardError, "reward"):
        raise error
    assert raised.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        ValueError(),
        ExceptionGroup("", [ValueError()]),
        BaseExceptionGroup("", [KeyboardInterrupt()]),
        BaseExceptionGroup("", [asyncio.CancelledError()]),
    ],
)
def test_everything_else_is_let_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, exits_as(RewardError, "reward"):
        raise error
    assert raised.value is error


@pytest.mark.parametrize("other", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_interrupt_beside_an_exit_goes_on_alone(other: BaseException) -> None:
    with pytest.raises(BaseExceptionGroup) as raised, exits_as(RewardError, "reward"):
        raise BaseExceptionGroup("", [SystemExit(9), other])
    assert raised.value.exceptions == (other,)


async def test_a_cancelled_body_is_cancelled() -> None:
    with anyio.move_on_after(0) as scope, exits_as(RewardError, "reward"):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep_forever)
    assert scope.cancelled_caught


async def exits() -> None:
    await anyio.lowlevel.checkpoint()
    raise SystemExit(9)


async def in_a_task_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        group.start_soon(exits)


async def in_a_nested_task_group() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(in_a_task_group)


async def in_a_task_of_asyncio() -> None:
    await asyncio.create_task(exits())


@pytest.mark.parametrize("body", [in_a_task_group, in_a_nested_task_group, in_a_task_of_asyncio])
def test_a_child_task_that_exits_does_not_end_the_program(body: Callable[[], Any]) -> None:
    seen: list[BaseException] = []

    async def rollout() -> None:
        try:
            with exits_as(RewardError, "reward"):
                await body()
        except Exception as error:
            seen.append(error)

    async def main() -> str:
        guard_child_tasks()
        async with anyio.create_task_group() as group:
            group.start_soon(rollout)
            group.start_soon(rollout)
        await anyio.lowlevel.checkpoint()
        return "the end"

    assert anyio.run(main) == "the end"
    assert len(seen) == 2
    for error in seen:
        while isinstance(error, BaseExceptionGroup):
            (error,) = error.exceptions
        assert isinstance(error, RewardError)
        assert str(error) == "The reward code called sys.exit(9)."


def test_a_task_of_no_author_that_exits_ends_the_program() -> None:
    async def main() -> None:
        guard_child_tasks()
        with exits_as(RewardError, "reward"):
            await anyio.lowlevel.checkpoint()
        async with anyio.create_task_group() as group:
            group.start_soon(exits)

    with pytest.raises(SystemExit):
        anyio.run(main)
