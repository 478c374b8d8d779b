"""An author's exit is an error; what else ends a program or a task is let through."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from hermes_rl.author_code import exits_as
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
