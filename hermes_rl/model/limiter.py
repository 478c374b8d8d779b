"""How many requests may be in flight at one endpoint: a limit that finds the server's own.

Slow start: every success under load raises the limit by one, which doubles it per round trip,
until the first HTTP 429. From then on it grows by 5 % per round trip. A 429 *episode* cuts it once:
refusals of requests that were already under way at the cut belong to the same episode. Growth
needs use: a success counts only if the limit was nearly reached when its request started.

Nothing here depends on time. A server's ``Retry-After`` delays the refused request (which holds no
permit meanwhile), never the limit.
"""

from __future__ import annotations

import enum
import logging

import anyio

__all__ = ["AdaptiveLimiter", "Outcome", "Permit"]

START = 32
"""First limit: small enough to probe a hosted model, three round trips below 256."""
CUT = 0.7
GROWTH_PER_ROUND = 0.05
BUSY_SHARE = 0.8
"""Share of the limit that must be in flight for a success to count."""

_log = logging.getLogger(__name__)


class Outcome(enum.Enum):
    """How a request ended, as far as the limit cares."""

    SUCCESS = "success"
    RATE_LIMITED = "rate_limited"
    NEUTRAL = "neutral"
    """Cancelled, failed otherwise: says nothing about the limit."""


class Permit:
    """The right to have one request in flight; given back exactly once."""

    __slots__ = ("_limiter", "busy", "episode", "outcome")

    def __init__(self, limiter: AdaptiveLimiter, episode: int, busy: bool) -> None:
        self._limiter = limiter
        self.episode = episode
        self.busy = busy
        self.outcome = Outcome.NEUTRAL
        """Set before :meth:`release`."""

    def release(self) -> None:
        """Give the permit back and let the outcome move the limit."""
        self._limiter.settle(self)


class AdaptiveLimiter:
    """The only limit on model requests of one endpoint.

    Args:
        maximum: Upper bound of the limit.
        start: First limit.
        name: For log lines.
    """

    def __init__(self, maximum: int, *, start: int = START, name: str = "model server") -> None:
        if maximum < 1:
            raise ValueError(f"maximum must be at least 1, not {maximum}")
        self._maximum = maximum
        self._limit = float(min(start, maximum))
        self._slow_start = True
        self._tokens = anyio.CapacityLimiter(int(self._limit))
        self._name = name
        self.episodes = 0
        """Times the server refused for too many requests and the limit was cut."""

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return int(self._limit)

    @property
    def in_flight(self) -> int:
        """Requests that hold a permit; above :attr:`limit` for a while after a cut."""
        return self._tokens.borrowed_tokens

    @property
    def waiting(self) -> int:
        """Requests that wait for a permit."""
        return self._tokens.statistics().tasks_waiting

    async def acquire(self) -> Permit:
        """Wait for a permit, first come first served. The caller must release it."""
        permit = Permit(self, self.episodes, busy=False)
        await self._tokens.acquire_on_behalf_of(permit)
        permit.episode = self.episodes
        permit.busy = self.in_flight >= BUSY_SHARE * self.limit
        return permit

    def settle(self, permit: Permit) -> None:
        """Take a permit back; called by :meth:`Permit.release`."""
        current = permit.episode == self.episodes
        if permit.outcome is Outcome.SUCCESS and current and permit.busy:
            self._grow()
        elif permit.outcome is Outcome.RATE_LIMITED and current:
            self._cut()
        self._tokens.release_on_behalf_of(permit)

    def _grow(self) -> None:
        step = 1.0 if self._slow_start else max(1.0, GROWTH_PER_ROUND * self._limit) / self._limit
        self._set(min(self._limit + step, float(self._maximum)))

    def _cut(self) -> None:
        self.episodes += 1
        self._slow_start = False
        before = self.limit
        # The limit may have been far above what was in flight when the server refused.
        used = min(self._limit, max(self.in_flight, self._limit / 2))
        self._set(max(1.0, CUT * used))
        _log.info("%s: too many requests at once, limit %d -> %d", self._name, before, self.limit)

    def _set(self, limit: float) -> None:
        self._limit = limit
        if int(limit) != self._tokens.total_tokens:
            self._tokens.total_tokens = int(limit)
