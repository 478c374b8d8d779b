"""The one retry layer of a model call, and how its time is counted.

An attempt is one HTTP request. It holds a permit of the endpoint's limiter; waiting for a permit
and between attempts holds none. What is retried: :class:`ModelRateLimited`,
:class:`ModelTransient` and, less often, :class:`ModelProtocolError`. Everything else ends the call
at once. Nothing above or below this layer retries a request.

Delays double from the policy's first one, each half fixed, half random. A server's ``Retry-After``
takes the place of the fixed half: the request comes back no earlier, and the limiter is not told.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from hermes_rl.errors import ModelError, ModelProtocolError, ModelRateLimited, ModelTransient
from hermes_rl.model.limiter import AdaptiveLimiter, Outcome
from hermes_rl.types import Timings
from hermes_rl.work_deadline import note_waited, waiting

__all__ = ["Retrier", "RetryPolicy", "Spent"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
TELL_EVERY_S = 60.0
"""Between two warnings about one endpoint, however many calls fail."""
_RETRIED = (ModelRateLimited, ModelTransient, ModelProtocolError)


@dataclass(slots=True, frozen=True, kw_only=True)
class RetryPolicy:
    """Bounds of one model call. The defaults ride out a server restart of half a minute.

    Attributes:
        max_attempts: Requests in all.
        max_protocol_attempts: Requests that may be answered with something that is no completion;
            a server that does so is more often misconfigured than ill.
        max_wall_s: Seconds for attempts and delays together; waiting for permits is not counted.
        first_delay_s: Delay after the first failure.
        first_rate_limited_delay_s: The same after HTTP 429 without ``Retry-After``.
        max_delay_s: Longest delay that we choose ourselves.
    """

    max_attempts: int = 8
    max_protocol_attempts: int = 3
    max_wall_s: float = 1800.0
    first_delay_s: float = 0.5
    first_rate_limited_delay_s: float = 2.0
    max_delay_s: float = 60.0


@dataclass(slots=True)
class Spent:
    """What one model call has used so far; also right after it failed.

    Attributes:
        requests: HTTP requests sent.
        model_s: Seconds of the attempt that succeeded.
        waiting_s: All other seconds: permits, delays, failed attempts.
        retry_wall_s: The part of the time that counts against ``max_wall_s``.
        protocol_failures: Answers that were no completion.
    """

    requests: int = 0
    model_s: float = 0.0
    waiting_s: float = 0.0
    retry_wall_s: float = 0.0
    protocol_failures: int = 0

    @property
    def timings(self) -> Timings:
        """The seconds in the form that a completion carries."""
        return Timings(model_s=self.model_s, waiting_s=self.waiting_s)


class Retrier:
    """Runs attempts under a limiter until one succeeds or the policy is exhausted.

    Args:
        limiter: Of the endpoint; shared by all its calls.
        policy: Bounds.
        clock: Seconds, monotonic.
        sleep: Waits that many seconds.
        rng: Uniform numbers in [0, 1).
    """

    def __init__(
        self,
        limiter: AdaptiveLimiter,
        *,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.limiter = limiter
        self.policy = policy or RetryPolicy()
        self._clock = clock
        self._sleep = sleep
        self._rng = rng
        self._told_at: float | None = None

    async def run(self, attempt: Callable[[float], Awaitable[T]], spent: Spent) -> T:
        """Return what ``attempt`` returns.

        Args:
            attempt: Sends one request; gets the seconds that are left for it.
            spent: Filled while running; the same object may be used for several runs of one call.

        Raises:
            ModelError: The last attempt's, with how often it was tried.
        """
        while True:
            failure = await self._attempt(attempt, spent)
            if not isinstance(failure, ModelError):
                return failure
            delay_s = self._delay_s(failure, spent)
            if delay_s is None:
                raise _given_up(failure, spent)
            self._tell(failure, delay_s, spent)
            await self._wait(delay_s, spent)

    def _tell(self, failure: ModelError, delay_s: float, spent: Spent) -> None:
        """Warn once a while: a server that is not there looks like one that is slow."""
        _log.debug("%s Next attempt in %.1f s.", failure, delay_s)
        now = self._clock()
        is_news = self._told_at is None or now - self._told_at >= TELL_EVERY_S
        if is_news and spent.requests >= 2 and not isinstance(failure, ModelRateLimited):
            self._told_at = now
            _log.warning("%s Trying again, %d times in all.", failure, self.policy.max_attempts)

    async def _attempt(
        self, attempt: Callable[[float], Awaitable[T]], spent: Spent
    ) -> T | ModelError:
        asked_at = self._clock()
        with waiting():
            permit = await self.limiter.acquire()
        sent_at = self._clock()
        spent.waiting_s += sent_at - asked_at
        spent.requests += 1
        try:
            value = await attempt(self.policy.max_wall_s - spent.retry_wall_s)
        except _RETRIED as error:
            if isinstance(error, ModelRateLimited):
                permit.outcome = Outcome.RATE_LIMITED
            elapsed_s = self._clock() - sent_at
            note_waited(elapsed_s)
            spent.waiting_s += elapsed_s
            spent.retry_wall_s += elapsed_s
            return error
        else:
            permit.outcome = Outcome.SUCCESS
            spent.model_s += self._clock() - sent_at
            return value
        finally:
            permit.release()

    def _delay_s(self, failure: ModelError, spent: Spent) -> float | None:
        """Return how long to wait before the next attempt, None = give up."""
        policy = self.policy
        spent.protocol_failures += isinstance(failure, ModelProtocolError)
        if spent.requests >= policy.max_attempts:
            return None
        if spent.protocol_failures >= policy.max_protocol_attempts:
            return None
        first_s = policy.first_delay_s
        if isinstance(failure, ModelRateLimited):
            first_s = policy.first_rate_limited_delay_s
        half_s = min(first_s * 2.0 ** (spent.requests - 1), policy.max_delay_s) / 2
        fixed_s = half_s if failure.retry_after_s is None else failure.retry_after_s
        delay_s = fixed_s + half_s * self._rng()
        return delay_s if spent.retry_wall_s + delay_s < policy.max_wall_s else None

    async def _wait(self, delay_s: float, spent: Spent) -> None:
        started_at = self._clock()
        with waiting():
            await self._sleep(delay_s)
        elapsed_s = self._clock() - started_at
        spent.waiting_s += elapsed_s
        spent.retry_wall_s += elapsed_s


def _given_up(failure: ModelError, spent: Spent) -> ModelError:
    if spent.requests == 1 and failure.retry_after_s is None:
        return failure
    asked = ""
    if failure.retry_after_s is not None:
        asked = f"; the server asks to wait {failure.retry_after_s:g} s"
    message = f"{failure} Gave up after {spent.requests} requests{asked}."
    return type(failure)(message, status=failure.status, retry_after_s=failure.retry_after_s)
