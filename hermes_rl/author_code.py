"""Author's code that calls ``sys.exit``: an error of its rollout, not the end of the program."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hermes_rl.errors import HermesRLError

__all__ = ["exits_as"]


@contextmanager
def exits_as(kind: type[HermesRLError], what: str) -> Iterator[None]:
    """Raise ``kind`` where the body exits, also from the body of a task group.

    An interrupt or a cancellation that comes along with an exit goes on; the exit does not.
    Where a task that the body started exits, asyncio ends the event loop before anyone is asked.

    Args:
        kind: What to raise.
        what: Whose code the body is: ``reward``, ``setup``.
    """
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


def _code(error: BaseException) -> object:
    """Return the code of the first exit in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error.code if isinstance(error, SystemExit) else None
