"""A call of reward code that runs when it is awaited, and says so when it is not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any, Generic, NoReturn, TypeVar

from hermes_rl.errors import RewardError

__all__ = ["DEFAULT_TIMEOUT_S", "ContextCall"]

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 180.0
"""Of one command of reward code."""
_RESULT_METHODS = frozenset({"get", "keys", "items", "values", "copy", "pop", "append", "strip"})
"""Methods of dictionaries, lists and text: whoever asks for one wants the result."""


class ContextCall(Generic[T]):
    """A call that runs when it is awaited, once.

    Raises:
        RewardError: It is used in any other way; the message names the line to fix.
    """

    __slots__ = ("_awaited", "_forget", "_run", "what", "where")

    def __init__(
        self,
        what: str,
        where: str,
        run: Callable[[], Awaitable[T]],
        forget: Callable[[ContextCall[Any]], None],
    ) -> None:
        self.what = what
        self.where = where
        self._run = run
        self._forget = forget
        self._awaited = False

    def __await__(self) -> Generator[Any, Any, T]:
        """Run the call."""
        if self._awaited:
            raise RewardError(
                f"{self.where}: {self.what} was awaited twice; keep its result in a variable."
            )
        self._awaited = True
        self._forget(self)
        return self._run().__await__()

    @property
    def problem(self) -> str:
        """What to tell the author when the call was not awaited."""
        return (
            f"{self.where}: {self.what} was not awaited, so it never ran. Write "
            f"'await {self.what}', or set sync_reward = True to call it without await."
        )

    def _misused(self, *_: object) -> NoReturn:
        raise RewardError(self.problem)

    __getitem__ = __contains__ = __len__ = __bool__ = __float__ = __int__ = _misused

    def __iter__(self) -> Iterator[Any]:
        """Raise: the result is there after an await only."""
        self._misused()

    def __getattr__(self, name: str) -> NoReturn:
        if name in _RESULT_METHODS:
            self._misused()
        raise AttributeError(f"ContextCall has no attribute {name!r}; await the call first.")

    def __repr__(self) -> str:
        return f"<{self.what} at {self.where}, not awaited>"
