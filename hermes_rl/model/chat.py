"""A session over chat completions: history, budget, reading; how to ask is the caller's.

Used by :mod:`hermes_rl.model.openai` (HTTP) and :mod:`hermes_rl.model.adapter` (an object).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import orjson

from hermes_rl.config import ServerConfig
from hermes_rl.model.budget import Allowance, TokenBudget
from hermes_rl.model.failures import ContentFiltered, PromptTooLong
from hermes_rl.model.protocol import Sampling
from hermes_rl.model.reply import CallIds, Spoken, first_choice, read_completion, read_usage
from hermes_rl.model.retry import Spent
from hermes_rl.model.wire import ReasoningInHistory, WireFormat, WireHistory
from hermes_rl.types import (
    Completion,
    JSONObject,
    Message,
    StopReason,
    TokenSequence,
    ToolCallParser,
    Usage,
)

__all__ = ["Asker", "ChatSession"]

_CONTEXT_SLACK_TOKENS = 16
"""A completion that ends this close to the context's end was cut by it."""


class Asker(Protocol):
    """Gets the next completion of one session."""

    @property
    def context_tokens(self) -> int | None:
        """Context window, None if unknown."""
        ...

    async def ask(
        self, history: WireHistory, allowance: Allowance, budget: TokenBudget, spent: Spent
    ) -> tuple[Allowance, JSONObject]:
        """Return a decoded chat completion and the bound it was really asked with.

        Args:
            history: The conversation.
            allowance: The bound to ask with.
            budget: For a smaller bound, should the server refuse this one.
            spent: To be filled, also when this raises.

        Raises:
            PromptTooLong: The prompt alone exceeds the context.
            ContentFiltered: A filter refused the prompt.
            ModelError: Anything else that ends the call.
        """
        ...


class ChatSession:
    """One rollout's conversation; see :class:`~hermes_rl.model.ModelSession`.

    Args:
        asker: Gets completions.
        tools: Schemas; count towards the prompt and help the parser.
        sampling: Holds the token limits.
        prices: Configuration with prices, where the server says no cost.
        parser: Reads calls out of the text where the server reports none.
        reasoning_in_history: See :class:`~hermes_rl.model.wire.WireFormat`.
    """

    def __init__(
        self,
        asker: Asker,
        *,
        tools: Sequence[JSONObject],
        sampling: Sampling,
        prices: ServerConfig,
        parser: ToolCallParser | None,
        reasoning_in_history: ReasoningInHistory,
    ) -> None:
        self._asker = asker
        self._tools = tools
        self._tools_bytes = len(orjson.dumps(list(tools))) if tools else 0
        self._prices = prices
        self._parser = parser
        self._format = WireFormat(reasoning_in_history)
        self._history = WireHistory(self._format)
        self._budget = TokenBudget(sampling)
        self._ids = CallIds()

    @property
    def forks(self) -> int:
        """Calls whose messages did not extend those of the call before."""
        return self._history.forks

    @property
    def sequences(self) -> Sequence[TokenSequence]:
        """None are known where a server is asked for text."""
        return ()

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Sample the next turn; see :meth:`hermes_rl.model.ModelSession.complete`."""
        await self._history.update(messages)
        self._budget.prompt_bytes = self._history.size_bytes + self._tools_bytes
        allowance = self._budget.allowance(self._asker.context_tokens)
        spent = Spent()
        if allowance is None:
            return _stopped(StopReason.TOKEN_LIMIT, spent)
        try:
            allowance, data = await self._asker.ask(self._history, allowance, self._budget, spent)
        except PromptTooLong:
            return _stopped(StopReason.CONTEXT_LENGTH, spent)
        except ContentFiltered:
            return _stopped(StopReason.CONTENT_FILTER, spent)
        return await self._read(data, allowance, spent)

    async def _read(self, data: JSONObject, allowance: Allowance, spent: Spent) -> Completion:
        choice = first_choice(data, "the server")
        spoken = await read_completion(choice, self._ids, parser=self._parser, tools=self._tools)
        usage = replace(read_usage(data, self._prices), requests=spent.requests)
        self._budget.record(usage)
        message = spoken.to_message()
        self._format.remember(message, spoken.reasoning_source)
        stop = self._stop(spoken, allowance, usage)
        is_empty = not (spoken.content or spoken.tool_calls)
        return Completion(
            message=None if stop is StopReason.CONTENT_FILTER and is_empty else message,
            tool_calls=tuple(spoken.tool_calls),
            invalid_calls=tuple(spoken.invalid_calls),
            reasoning=spoken.reasoning,
            finish_reason=spoken.finish_reason,
            usage=usage,
            timings=spent.timings,
            stop=stop,
            raw_text=spoken.raw_text,
            markers=spoken.markers,
        )

    def _stop(self, spoken: Spoken, allowance: Allowance, usage: Usage) -> StopReason | None:
        """Return the limit that cut the turn, if one did and the rollout cannot go on."""
        if spoken.finish_reason == "content_filter":
            return StopReason.CONTENT_FILTER
        if spoken.finish_reason != "length":
            return None
        stop, context = None, self._asker.context_tokens
        if allowance.max_tokens is not None:
            is_ours = not 0 < usage.completion_tokens < allowance.max_tokens
            stop = allowance.stop if is_ours else None
        elif context is not None:
            end = usage.prompt_tokens + usage.completion_tokens + _CONTEXT_SLACK_TOKENS
            stop = StopReason.CONTEXT_LENGTH if end >= context else None
        if stop is StopReason.CONTEXT_LENGTH and spoken.tool_calls:
            return None  # The calls are whole and shall run; the next prompt will be refused.
        return stop


def _stopped(stop: StopReason, spent: Spent) -> Completion:
    finish = "content_filter" if stop is StopReason.CONTENT_FILTER else "length"
    return Completion(
        message=None,
        finish_reason=finish,
        usage=Usage(requests=spent.requests),
        timings=spent.timings,
        stop=stop,
    )
