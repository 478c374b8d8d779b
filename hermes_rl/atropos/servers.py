"""Model servers as an environment sees them: configuration, and ``env.server`` for its own code."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from pydantic import BaseModel

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError
from hermes_rl.model.protocol import ChatModel, ModelSession, Sampling
from hermes_rl.types import Completion, JSONObject, Message, StopReason, Usage

__all__ = ["ManagedSession", "ServerAdapter", "server_configs_of", "to_server_config"]


def to_server_config(config: Any) -> ServerConfig:
    """Return Atropos' ``APIServerConfig`` (or a mapping, or ours) as our server configuration.

    Only fields that were set are taken over, so that our defaults stand for the rest.

    Raises:
        pydantic.ValidationError: A field is unknown or has a bad value.
    """
    if isinstance(config, ServerConfig):
        return config
    if isinstance(config, BaseModel):
        values = {name: getattr(config, name) for name in config.model_fields_set}
    elif isinstance(config, Mapping):
        values = dict(config)
    else:
        values = vars(config)
    if values.get("tokenizer_name") == "none":
        del values["tokenizer_name"]
    return ServerConfig(**values)


def server_configs_of(configs: Any) -> tuple[ServerConfig, ...]:
    """Return one server or an iterable of servers as a tuple; None = ()."""
    if configs is None:
        return ()
    if isinstance(configs, BaseModel | Mapping) or not isinstance(configs, Iterable):
        return (to_server_config(configs),)
    return tuple(to_server_config(config) for config in configs)


class AdaptedServer:
    """One server as code that looks at ``env.server.servers`` knows it."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config


class ServerAdapter:
    """``env.server``: the open model, for code of a subclass that talks to it directly.

    Attributes:
        servers: One entry per configured server, each with ``config``.
        model: Set while the environment is open.
    """

    def __init__(self, configs: Sequence[ServerConfig]) -> None:
        self.servers = [AdaptedServer(config) for config in configs]
        self.model: ChatModel | None = None

    async def chat_completion(
        self,
        *,
        messages: Sequence[Message],
        tools: Sequence[JSONObject] = (),
        n: int = 1,
        **options: Any,
    ) -> Any:
        """Return an ``openai`` ``ChatCompletion`` with ``n`` choices.

        Args:
            messages: The conversation.
            tools: Tool schemas.
            n: How many turns to sample.
            options: ``temperature``, ``top_p``, ``max_tokens``, ``seed``, ``extra_body``; others
                are refused.
        """
        turns: list[Completion | None] = [None] * n

        async def sample(index: int) -> None:
            async with self.managed_server(tools=tools, **_for_choice(options, index)) as session:
                turns[index] = await session.complete(messages)

        async with anyio.create_task_group() as tasks:
            for index in range(n):
                tasks.start_soon(sample, index)
        return _chat_completion([turn for turn in turns if turn is not None], self._name)

    async def completion(self, **options: Any) -> Any:
        """Refuse: a text completion carries no messages to score."""
        raise ConfigError(
            "env.server.completion is not offered: use chat_completion, or managed_server for "
            "exact tokens."
        )

    @asynccontextmanager
    async def managed_server(
        self, tokenizer: Any = None, *, tools: Sequence[JSONObject] = (), **options: Any
    ) -> AsyncIterator[ManagedSession]:
        """Open one conversation; its ``get_state()`` holds the exact tokens of token-exact servers.

        Args:
            tokenizer: Accepted for Atropos' signature; the server's own is used.
            tools: Tool schemas, fixed for the conversation.
            options: As in :meth:`chat_completion`.
        """
        if self.model is None:
            raise ConfigError("The environment's servers are not open: run it by a command.")
        seed = options.pop("seed", None)
        async with self.model.session(
            tools=list(tools), sampling=_sampling(options), seed=seed
        ) as session:
            yield ManagedSession(session, self._name)

    @property
    def _name(self) -> str:
        return self.model.name if self.model is not None else "model"


class ManagedSession:
    """One conversation with exact tokens, as Atropos' ``ManagedServer`` offers it."""

    def __init__(self, session: ModelSession, name: str) -> None:
        self._session = session
        self._name = name

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Sample the next turn of the conversation."""
        return await self._session.complete(messages)

    async def chat_completion(self, *, messages: Sequence[Message], **_: Any) -> Any:
        """Sample the next turn and return it as an ``openai`` ``ChatCompletion``."""
        return _chat_completion([await self._session.complete(messages)], self._name)

    def get_state(self) -> JSONObject:
        """Return ``{"nodes": [{tokens, masked_tokens, logprobs, metadata}]}``."""
        nodes = [
            {
                "tokens": sequence.tokens,
                "masked_tokens": sequence.masked_tokens,
                "logprobs": sequence.logprobs,
                "metadata": sequence.metadata,
            }
            for sequence in self._session.sequences
        ]
        return {"nodes": nodes}


def _for_choice(options: Mapping[str, Any], index: int) -> JSONObject:
    """Return the options of one choice: equal seeds would give equal turns."""
    seed = options.get("seed")
    return {**options} if seed is None else {**options, "seed": seed + index}


def _sampling(options: JSONObject) -> Sampling:
    known = {"temperature", "top_p", "max_tokens", "extra_body", "model", "split"}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ConfigError(
            f"Unknown sampling options: {', '.join(unknown)}. Known: {sorted(known)}."
        )
    return Sampling(
        temperature=options.get("temperature", 1.0),
        top_p=options.get("top_p"),
        max_tokens_per_turn=options.get("max_tokens"),
        extra_body=options.get("extra_body") or {},
    )


def _chat_completion(turns: Sequence[Completion], model_name: str) -> Any:
    """Return turns as an object of the ``openai`` package (a dependency of atroposlib)."""
    from openai.types.chat import ChatCompletion

    usage = sum((turn.usage for turn in turns), Usage())
    return ChatCompletion.model_validate(
        {
            "id": f"chatcmpl-{secrets.token_hex(8)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model_name,
            "choices": [_choice(index, turn) for index, turn in enumerate(turns)],
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
        }
    )


def _choice(index: int, turn: Completion) -> JSONObject:
    known = ("stop", "length", "tool_calls", "content_filter")
    reason = turn.finish_reason if turn.finish_reason in known else "stop"
    if turn.message is None:
        reason = "content_filter" if turn.stop is StopReason.CONTENT_FILTER else "length"
    return {
        "index": index,
        "finish_reason": reason,
        "message": turn.message or {"role": "assistant", "content": None},
    }
