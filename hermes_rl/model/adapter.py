"""Any object with ``chat_completion(**kwargs)`` as a chat model: Atropos' servers, users' own.

The object keeps its own retries and limits; nothing is retried here. It gets ``messages``,
``temperature``, ``n=1`` and, where set, ``tools``, ``top_p``, ``max_tokens``, ``seed`` and
``extra_body``, and answers with an OpenAI chat completion: an object of the ``openai`` package, any
other pydantic model, or a dictionary.

An object that tracks token sequences (``get_state()``, as Atropos' ``ManagedServer``) fills
``session.sequences``; see :mod:`hermes_rl.model.tracked`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ModelError, ModelProtocolError, ModelTransient
from hermes_rl.model.budget import Allowance, TokenBudget
from hermes_rl.model.chat import Asker, ChatSession
from hermes_rl.model.failures import classify, error_in
from hermes_rl.model.protocol import Sampling
from hermes_rl.model.reply import first_choice
from hermes_rl.model.retry import Spent
from hermes_rl.model.tracked import SupportsState, TrackedSequences
from hermes_rl.model.wire import ReasoningInHistory, WireHistory
from hermes_rl.types import Completion, JSONObject, Message, TokenSequence, ToolCallParser

__all__ = ["ChatCompletionModel", "SupportsChatCompletion"]


class SupportsChatCompletion(Protocol):
    """Answers ``chat_completion`` as OpenAI's API does."""

    async def chat_completion(self, **kwargs: Any) -> Any:
        """Return an OpenAI chat completion."""
        ...


class ChatCompletionModel:
    """A :class:`~hermes_rl.model.ChatModel` made of such an object.

    Args:
        server: The object; shared by all sessions, so it must take concurrent calls. One that
            tracks sequences serves one session at a time.
        name: Model name for reports; None = the server's ``config.model_name``, else its class.
        context_tokens: Context window, if known.
        parser: Reads tool calls out of the text where the server reports none.
        reasoning_in_history: See :class:`~hermes_rl.model.wire.WireFormat`.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        server: SupportsChatCompletion,
        *,
        name: str | None = None,
        context_tokens: int | None = None,
        parser: ToolCallParser | None = None,
        reasoning_in_history: ReasoningInHistory = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        configured = getattr(getattr(server, "config", None), "model_name", None)
        self.name = name or configured or type(server).__name__
        self.context_tokens = context_tokens
        self._server = server
        self._parser = parser
        self._reasoning: ReasoningInHistory = reasoning_in_history
        self._clock = clock

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[ChatSession]:
        """Open the conversation of one rollout."""
        server = self._server
        calls = _Calls(
            server,
            _fixed_arguments(tools, sampling, seed),
            context_tokens=self.context_tokens,
            clock=self._clock,
        )
        yield _Session(
            calls,
            tracked=TrackedSequences(server) if isinstance(server, SupportsState) else None,
            tools=tools,
            sampling=sampling,
            prices=ServerConfig(),
            parser=self._parser,
            reasoning_in_history=self._reasoning,
        )


class _Session(ChatSession):
    """A conversation whose sequences the object may have tracked."""

    def __init__(
        self,
        asker: Asker,
        *,
        tracked: TrackedSequences | None,
        tools: Sequence[JSONObject],
        sampling: Sampling,
        prices: ServerConfig,
        parser: ToolCallParser | None,
        reasoning_in_history: ReasoningInHistory,
    ) -> None:
        super().__init__(
            asker,
            tools=tools,
            sampling=sampling,
            prices=prices,
            parser=parser,
            reasoning_in_history=reasoning_in_history,
        )
        self._tracked = tracked

    @property
    def sequences(self) -> Sequence[TokenSequence]:
        """What the object tracked of this conversation."""
        return self._tracked.sequences() if self._tracked else ()

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Sample the next turn; see :meth:`hermes_rl.model.ModelSession.complete`."""
        completion = await super().complete(messages)
        if self._tracked is not None and self._tools:
            self._tracked.check_tools_are_shown(self._tools)
        return completion


class _Calls:
    """Asks the object."""

    def __init__(
        self,
        server: SupportsChatCompletion,
        arguments: JSONObject,
        *,
        context_tokens: int | None,
        clock: Callable[[], float],
    ) -> None:
        self.context_tokens = context_tokens
        self._server = server
        self._arguments = arguments
        self._clock = clock

    async def ask(
        self, history: WireHistory, allowance: Allowance, budget: TokenBudget, spent: Spent
    ) -> tuple[Allowance, JSONObject]:
        arguments = dict(self._arguments)
        if allowance.max_tokens is not None:
            arguments["max_tokens"] = allowance.max_tokens
        name = type(self._server).__name__
        spent.requests += 1
        started_at = self._clock()
        try:
            answer = await self._server.chat_completion(
                messages=history.wire_messages(), **arguments
            )
        except Exception as error:  # Foreign code may raise anything.
            raise _failure_of(error, name) from error
        spent.model_s += self._clock() - started_at
        data = _to_json(answer, name)
        first_choice(data, name)
        return allowance, data


def _fixed_arguments(
    tools: Sequence[JSONObject], sampling: Sampling, seed: int | None
) -> JSONObject:
    arguments: JSONObject = {"temperature": sampling.temperature, "n": 1}
    optional = {
        "tools": list(tools),
        "top_p": sampling.top_p,
        "seed": seed,
        "extra_body": dict(sampling.extra_body),
    }
    return arguments | {
        key: value for key, value in optional.items() if value not in (None, [], {})
    }


def _to_json(answer: object, name: str) -> JSONObject:
    if isinstance(answer, dict):
        return answer
    dump = getattr(answer, "model_dump", None)
    # Atropos' ManagedServer puts plain dictionaries where the openai package has classes, about
    # which pydantic would warn.
    data = dump(warnings=False) if callable(dump) else None
    if not isinstance(data, dict):
        raise ModelProtocolError(
            f"chat_completion of {name} returned {type(answer).__name__}; "
            "an OpenAI chat completion (object or dictionary) is wanted."
        )
    return data


def _failure_of(error: Exception, name: str) -> ModelError:
    """Return what an exception of the object means; it did its own retries already."""
    last = getattr(error, "last_attempt", None)  # tenacity's RetryError
    cause = last.exception() if last is not None else None
    if isinstance(cause, Exception):
        return _failure_of(cause, name)
    if isinstance(error, ModelError):
        return error
    said = f"chat_completion of {name} failed: {type(error).__name__}: {error}"
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    if isinstance(status, int):
        body = getattr(error, "body", None)
        return classify(status, error_in(body if body else said), server=name)
    connection_errors = {"APIConnectionError", "TransportError", "ClientConnectionError"}
    names = {cls.__name__ for cls in type(error).__mro__}
    if isinstance(error, OSError) or names & connection_errors:
        return ModelTransient(said)
    return ModelError(said)
