"""How fast a cloud is asked for sandboxes: a token bucket that a refusal empties."""

from __future__ import annotations

from collections.abc import Callable

import anyio

__all__ = ["CreationRate"]


class CreationRate:
    """At most ``burst`` creations at once and ``per_s`` of them a second after that.

    In any window of ``t`` seconds at most ``burst + per_s * t`` tokens are given out. Waiters are
    served in the order they came.

    Args:
        per_s: Tokens a second.
        burst: Tokens a full bucket holds.
        now: Seconds, monotonic.
    """

    def __init__(
        self, per_s: float, *, burst: int = 1, now: Callable[[], float] = anyio.current_time
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now = now
        self._tokens = float(burst)
        self._counted_at_s: float | None = None
        self._closed_until_s = 0.0
        self._turn = anyio.Lock()

    async def take(self) -> None:
        """Wait for a token."""
        async with self._turn:
            while (wait_s := self.wait_s()) > 0:  # noqa: ASYNC110  # a refusal may prolong it
                await anyio.sleep(wait_s)
            self._tokens -= 1

    def wait_s(self) -> float:
        """Return how long it is until a token is there; 0 = now."""
        now_s = self._now()
        self._fill(now_s)
        missing = 1 - self._tokens
        return max(missing / self._per_s, self._closed_until_s - now_s, 0.0)

    def _fill(self, now_s: float) -> None:
        since_s = now_s - self._counted_at_s if self._counted_at_s is not None else 0.0
        self._tokens = min(float(self._burst), self._tokens + since_s * self._per_s)
        self._counted_at_s = now_s

    def refused(self, retry_after_s: float) -> None:
        """Give nothing out for a while: the vendor said that it was asked too often."""
        self._fill(self._now())
        self._tokens = min(self._tokens, 0.0)
        self._closed_until_s = max(self._closed_until_s, self._now() + retry_after_s)
