"""Code of others, which may raise anything, also ``SystemExit``: an error, not the end of all."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

from hermes_rl.errors import HermesRLError

__all__ = ["exits_as", "failure_text", "guard_child_tasks"]

_Coroutine = Coroutine[Any, Any, Any] | Generator[Any, None, Any]
"""What an event loop makes a task of."""
_Whose = tuple[type[HermesRLError], str]
_whose: ContextVar[_Whose | None] = ContextVar("author_code", default=None)
"""What an exit in this task, and in those that it starts, is raised as."""


def failure_text(error: BaseException) -> str:
    """Return what went wrong in an author's code, and where, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


@contextmanager
def exits_as(kind: type[HermesRLError], what: str) -> Iterator[None]:
    """Raise ``kind`` where the body exits, also from the body of a task group.

    An interrupt or a cancellation that comes along with an exit goes on; the exit does not.
    Where a task that the body started exits, asyncio ends the event loop before anyone is asked,
    but for a loop with :func:`guard_child_tasks`.

    Args:
        kind: What to raise.
        what: Whose code the body is: ``reward``, ``setup``.
    """
    token = _whose.set((kind, what))
    try:
        yield
    except SystemExit as error:
        raise kind(f"The {what} code called sys.exit({error.code!r}).") from error
    except BaseExceptionGroup as group:
        exits, rest = group.split(SystemExit)
        if exits is None:
            raise
        if rest is not None and not isinstance(rest, Exception):
            raise rest from None
        raise kind(f"The {what} code called sys.exit({_code(exits)!r}).") from group
    finally:
        _whose.reset(token)


def guard_child_tasks() -> None:
    """Make an exit in a task that the body of :func:`exits_as` started the same error, there.

    For the running event loop, which must be a program's own: it is given a task factory. Exits in
    plain callbacks (``loop.call_soon``) still end the loop.
    """
    asyncio.get_running_loop().set_task_factory(_make_task)


def _make_task(
    loop: asyncio.AbstractEventLoop, coro: _Coroutine, **options: Any
) -> asyncio.Task[Any]:
    whose = _whose.get()
    return asyncio.Task(coro if whose is None else _guarded(coro, whose), loop=loop, **options)


async def _guarded(coro: _Coroutine, whose: _Whose) -> Any:
    with exits_as(*whose):
        return await cast("Awaitable[Any]", coro)


def _code(error: BaseException) -> object:
    """Return the code of the first exit in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.code if isinstance(error, SystemExit) else None
