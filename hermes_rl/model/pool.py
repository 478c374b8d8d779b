"""Several servers of the same model as one: a rollout stays with the server it began on.

The server with the fewest open sessions gets the next one, so that each keeps the prefixes of its
own rollouts in its cache. A server that just failed a call (no connection, 5xx, 429 after all
retries) is passed over for a while: failing fast would otherwise make it the least loaded.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from hermes_rl.errors import ModelError
from hermes_rl.model.protocol import ChatModel, ModelSession, Sampling
from hermes_rl.types import Completion, JSONObject, Message, TokenSequence

__all__ = ["ModelPool"]

COOL_OFF_S = 60.0
"""Seconds for which a server that failed gets no new session, if another can."""


class _Member:
    """One server with its load."""

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        self.open_sessions = 0
        self.failed_at: float | None = None


class _PooledSession:
    """A session that reports its server's failures to the pool."""

    def __init__(self, session: ModelSession, member: _Member, clock: Callable[[], float]) -> None:
        self._session = session
        self._member = member
        self._clock = clock

    @property
    def sequences(self) -> Sequence[TokenSequence]:
        return self._session.sequences

    async def complete(self, messages: Sequence[Message]) -> Completion:
        try:
            completion = await self._session.complete(messages)
        except ModelError as error:
            if error.retryable:
                self._member.failed_at = self._clock()
            raise
        self._member.failed_at = None
        return completion


class ModelPool:
    """A :class:`~hermes_rl.model.ChatModel` made of several; never empty.

    Args:
        members: The servers' models; open for as long as the pool is used.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, members: Sequence[ChatModel], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if not members:
            raise ValueError("a pool needs at least one model")
        self._members = [_Member(model) for model in members]
        self._clock = clock

    @property
    def name(self) -> str:
        """The members' names, each once."""
        return ", ".join(dict.fromkeys(member.model.name for member in self._members))

    @property
    def context_tokens(self) -> int | None:
        """The smallest known context."""
        known = [member.model.context_tokens for member in self._members]
        return min((tokens for tokens in known if tokens is not None), default=None)

    @property
    def open_sessions(self) -> tuple[int, ...]:
        """Open sessions per member."""
        return tuple(member.open_sessions for member in self._members)

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[ModelSession]:
        """Open a session on the least loaded server."""
        member = self._choose()
        member.open_sessions += 1
        try:
            async with member.model.session(tools=tools, sampling=sampling, seed=seed) as session:
                yield _PooledSession(session, member, self._clock)
        finally:
            member.open_sessions -= 1

    def _choose(self) -> _Member:
        now = self._clock()
        healthy = [
            member
            for member in self._members
            if member.failed_at is None or now - member.failed_at >= COOL_OFF_S
        ]
        return min(healthy or self._members, key=lambda member: member.open_sessions)
