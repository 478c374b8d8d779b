"""The seams between the agent loop and model clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from hermes_rl.types import Completion, JSONObject, Message, TokenSequence

__all__ = ["ChatModel", "HistoryRenderer", "ModelSession", "Renderer", "Sampling"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Sampling:
    """How to sample; None = the server's default, except where said.

    Attributes:
        temperature: 0 = greedy.
        top_p: Nucleus mass.
        max_tokens_per_turn: Cap on one completion.
        max_token_length: Budget of the whole sequence in tokens, prompt included; None = the
            model's context.
        extra_body: Extra request fields, sent as they are (phase 1 only).
    """

    temperature: float = 1.0
    top_p: float | None = None
    max_tokens_per_turn: int | None = None
    max_token_length: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)


class ModelSession(Protocol):
    """One rollout's conversation with a model."""

    @property
    def sequences(self) -> Sequence[TokenSequence]:
        """Exact token sequences so far; empty for clients that have none."""
        ...

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Sample the next assistant turn.

        A limit (sequence budget, context, content filter) is ``Completion.stop``, no exception.

        Raises:
            ModelError: See :mod:`hermes_rl.errors`; retries are already spent.
        """
        ...


@runtime_checkable
class ChatModel(Protocol):
    """A model behind some endpoint; shared by all rollouts of a run."""

    @property
    def name(self) -> str:
        """Model name for reports."""
        ...

    @property
    def context_tokens(self) -> int | None:
        """Context window in tokens, None if unknown."""
        ...

    def session(
        self,
        *,
        tools: Sequence[JSONObject],
        sampling: Sampling,
        seed: int | None = None,
    ) -> AbstractAsyncContextManager[ModelSession]:
        """Open the conversation of one rollout.

        Args:
            tools: Tool schemas in OpenAI form.
            sampling: How to sample.
            seed: Makes the rollout reproducible where the server can.
        """
        ...


class Renderer(Protocol):
    """Turns messages into exactly the token ids a model expects (token-exact clients).

    Keeps no state: one renderer serves all rollouts. Content of messages never becomes a control
    token. Methods may ask a server (errors are :class:`~hermes_rl.errors.ModelError`) or use a
    thread, so they are awaited.
    """

    @property
    def cuts_turns(self) -> bool:
        """Whether turns end at a text (:meth:`turn_end`), for want of an end-of-turn token."""
        ...

    async def start(self, messages: Sequence[Message], tools: Sequence[JSONObject]) -> list[int]:
        """Return the ids of the whole opening prompt, up to where the assistant speaks."""
        ...

    async def extend(
        self, turn: Sequence[int], new_messages: Sequence[Message]
    ) -> list[int] | None:
        """Return the ids to append after a sampled turn so that ``new_messages`` are shown.

        Args:
            turn: Ids sampled in the finished turn, its end token included if one was sampled. A
                turn without its end (cut by length) is ended by the first of the returned ids.
            new_messages: Messages after the assistant turn (tool results, user messages).

        Returns:
            Ids that follow directly, or None if this template cannot be extended: the caller
            renders afresh with :meth:`start` and counts a fork.
        """
        ...

    async def turn_end(self, turn: Sequence[int], *, searched: int = 0) -> int | None:
        """Return how many leading ids make up the turn, None if it has not ended yet.

        Asked only where :attr:`cuts_turns`.

        Args:
            turn: Ids sampled so far.
            searched: Leading ids that are known not to hold the end.
        """
        ...

    async def read(self, turn: Sequence[int]) -> str:
        """Return the text of a finished turn for the tool-call parser, without its end token."""
        ...


@runtime_checkable
class HistoryRenderer(Renderer, Protocol):
    """A renderer that looks at the whole conversation to extend it; preferred to ``extend``."""

    async def extend_history(
        self,
        turn: Sequence[int],
        new_messages: Sequence[Message],
        *,
        history: Sequence[Message],
        tools: Sequence[JSONObject],
        ended: bool,
    ) -> list[int] | None:
        """Return what :meth:`Renderer.extend` returns.

        Args:
            turn: Ids sampled in the finished turn.
            new_messages: Messages after the assistant turn.
            history: All messages before them; the last is the one read out of ``turn``.
            tools: Schemas of the session.
            ended: Whether the model ended the turn, and not a limit.
        """
        ...
