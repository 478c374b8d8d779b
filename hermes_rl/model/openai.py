"""Any server that speaks OpenAI's ``/v1/chat/completions``, with tools on the wire.

vLLM, SGLang, llama.cpp, OpenRouter, OpenAI and others. A session sends the whole conversation each
time; every message is encoded once and the encoded pieces are joined. Answers are read by
:mod:`hermes_rl.model.reply`, refusals by :mod:`hermes_rl.model.failures`, and retried by
:mod:`hermes_rl.model.retry` only.

Two things are learnt from a server's refusals and kept for all sessions: whether it wants
``max_completion_tokens`` in place of ``max_tokens`` and takes no ``seed`` (:class:`Dialect`), and
the size of the model's context. A refusal because prompt and ``max_tokens`` together exceed the
context is answered once with a smaller ``max_tokens``; a prompt that is too long by itself is
``Completion(stop=CONTEXT_LENGTH)``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import anyio.lowlevel
import httpx
import orjson

from hermes_rl.config import ServerConfig
from hermes_rl.errors import (
    ConfigError,
    ModelError,
    ModelProtocolError,
    ModelRejected,
    ModelTransient,
)
from hermes_rl.model.address import resolve_address
from hermes_rl.model.budget import Allowance, TokenBudget
from hermes_rl.model.chat import ChatSession
from hermes_rl.model.failures import (
    PromptTooLong,
    UnsupportedParameter,
    classify,
    error_in,
    failure_of,
)
from hermes_rl.model.http import Endpoint, Reply, open_endpoint
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.protocol import Sampling
from hermes_rl.model.reply import first_choice
from hermes_rl.model.retry import Retrier, RetryPolicy, Spent
from hermes_rl.model.wire import PART_BYTES, ReasoningInHistory, WireHistory
from hermes_rl.types import JSONObject, ToolCallParser

__all__ = ["Dialect", "OpenAIModel", "open_openai"]

_OURS = frozenset(
    {"messages", "model", "tools", "stream", "n", "max_tokens", "max_completion_tokens"}
)
"""Request fields that ``extra_body`` may not set: the session keeps account of them."""
UNNAMED = "default"
"""``model_name`` where none was configured."""
_DISCOVERY_TIMEOUT_S = 10.0
_CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
"""Where servers say the context's size in ``/v1/models``: vLLM and SGLang, OpenRouter, Groq,
Mistral, llama.cpp (in ``meta``)."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True)
class Dialect:
    """What a server turned out to accept."""

    max_tokens_field: str = "max_tokens"
    takes_seed: bool = True

    def after_refusal_of(self, parameter: str) -> Dialect:
        """Return the dialect without ``parameter``; the same if it is not in this one."""
        if parameter == "max_tokens":
            return replace(self, max_tokens_field="max_completion_tokens")
        if parameter == "seed":
            return replace(self, takes_seed=False)
        return self


@asynccontextmanager
async def open_openai(
    config: ServerConfig,
    *,
    parser: ToolCallParser | None = None,
    limiter: AdaptiveLimiter | None = None,
    reasoning_in_history: ReasoningInHistory = "auto",
    policy: RetryPolicy | None = None,
    environ: Mapping[str, str] = os.environ,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[OpenAIModel]:
    """Open a server of type ``openai``; its connections close with the context.

    Asks ``/models``, which is free, for the context's size, and for the model's name if none is
    configured and the server has one model. A server that does not answer it is no error.

    Args:
        config: The server.
        parser: Reads tool calls out of the text where the server reports none.
        limiter: Of this endpoint; None = one up to ``num_max_requests_at_once``.
        reasoning_in_history: See :class:`~hermes_rl.model.wire.WireFormat`.
        policy: Bounds of retries.
        environ: Where keys are looked up.
        transport: In place of ours, for a proxy or certificates of your own; yours to close.

    Raises:
        ConfigError: Address or key are missing or unusable.
    """
    address = resolve_address(config, environ)
    limiter = limiter or AdaptiveLimiter(config.num_max_requests_at_once, name=address.base_url)
    async with open_endpoint(
        address.base_url, api_key=address.api_key, transport=transport
    ) as endpoint:
        listed = await _listed_model(endpoint, config)
        found = str(listed.get("id") or config.model_name)
        yield OpenAIModel(
            endpoint,
            config,
            retrier=Retrier(limiter, policy=policy),
            parser=parser,
            reasoning_in_history=reasoning_in_history,
            name=found if config.model_name == UNNAMED else config.model_name,
            context_tokens=_context_in(listed),
            is_openrouter=address.is_openrouter,
            key_hint=address.key_hint,
        )


async def _listed_model(endpoint: Endpoint, config: ServerConfig) -> JSONObject:
    """Return what ``/models`` says of the configured model, {} if nothing."""
    if config.context_tokens is not None and config.model_name != UNNAMED:
        return {}
    try:
        reply = await endpoint.get("/models", timeout_s=_DISCOVERY_TIMEOUT_S)
        data = orjson.loads(reply.body) if reply.status == 200 else {}
    except (ModelError, orjson.JSONDecodeError) as error:
        _log.debug("%s does not list its models: %s", endpoint.base_url, error)
        return {}
    entries = data.get("data") if isinstance(data, dict) else data
    listed = entries if isinstance(entries, list) else []
    models = [entry for entry in listed if isinstance(entry, dict)]
    if config.model_name == UNNAMED:
        return models[0] if len(models) == 1 else {}
    return next((model for model in models if model.get("id") == config.model_name), {})


def _context_in(listed: JSONObject) -> int | None:
    meta = listed.get("meta")
    fields = {**meta, **listed} if isinstance(meta, dict) else listed
    sizes = (fields.get(key) for key in _CONTEXT_KEYS)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


class OpenAIModel:
    """A :class:`~hermes_rl.model.ChatModel` behind ``/v1/chat/completions``.

    Args:
        endpoint: Open connections to the server.
        config: Its configuration.
        retrier: The retry layer with this endpoint's limiter.
        parser: Reads tool calls out of the text where the server reports none.
        reasoning_in_history: See :class:`~hermes_rl.model.wire.WireFormat`.
        name: Model name; None = the configured one.
        context_tokens: Context window if known; learnt from the first refusal otherwise.
        is_openrouter: Whether reasoning is asked for in OpenRouter's way.
        key_hint: What to do about a refused key, for the error message.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        config: ServerConfig,
        *,
        retrier: Retrier,
        parser: ToolCallParser | None = None,
        reasoning_in_history: ReasoningInHistory = "auto",
        name: str | None = None,
        context_tokens: int | None = None,
        is_openrouter: bool = False,
        key_hint: str = "",
    ) -> None:
        self.name = name or config.model_name
        self.context_tokens = config.context_tokens or context_tokens
        self.config = config
        self.retrier = retrier
        self.parser = parser
        self.reasoning_in_history: ReasoningInHistory = reasoning_in_history
        self.dialect = Dialect()
        self._endpoint = endpoint
        self._is_openrouter = is_openrouter
        self._key_hint = key_hint

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[ChatSession]:
        """Open the conversation of one rollout.

        Raises:
            ConfigError: ``sampling.extra_body`` sets a field that the session itself sets.
        """
        yield ChatSession(
            _Requests(self, tools=tools, sampling=sampling, seed=seed),
            tools=tools,
            sampling=sampling,
            prices=self.config,
            parser=self.parser,
            reasoning_in_history=self.reasoning_in_history,
        )

    def reasoning_fields(self) -> JSONObject:
        """Return the request fields that ask for reasoning as configured."""
        effort, max_tokens = self.config.reasoning_effort, self.config.max_reasoning_tokens
        if effort and max_tokens is None and not self._is_openrouter:
            return {"reasoning_effort": effort}
        reasoning = {"effort": effort, "max_tokens": max_tokens}
        wanted = {key: value for key, value in reasoning.items() if value}
        return {"reasoning": wanted} if wanted else {}

    def adapt(self, parameter: str, used: Dialect) -> bool:
        """Drop a refused parameter; say whether the dialect is no longer the one ``used``."""
        if used == self.dialect:
            self.dialect = used.after_refusal_of(parameter)
            if used != self.dialect:
                _log.info("%s takes no %s", self._endpoint.base_url, parameter)
        return used != self.dialect

    async def request(self, body: Sequence[bytes], remaining_s: float) -> JSONObject:
        """Send one request and return its completion as decoded JSON.

        Raises:
            ModelError: By class, see :mod:`hermes_rl.model.failures`.
        """
        timeout_s = min(float(self.config.timeout), remaining_s)
        reply = await self._endpoint.post("/chat/completions", body, timeout_s=timeout_s)
        server = self._endpoint.base_url
        if not 200 <= reply.status < 300:
            raise failure_of(reply, server=server, key_hint=self._key_hint)
        data = self._decode(reply)
        if len(reply.body) > PART_BYTES:
            await anyio.lowlevel.checkpoint()
        self._raise_error_in(data)
        choice = first_choice(data, server)
        self._raise_error_in(choice)
        if choice.get("finish_reason") in ("error", "abort"):
            raise ModelTransient(f"{server} broke off while answering.", status=reply.status)
        return data

    def _decode(self, reply: Reply) -> JSONObject:
        try:
            data = orjson.loads(reply.body)
        except orjson.JSONDecodeError:
            data = None
        if isinstance(data, dict):
            return data
        kind = reply.headers.get("content-type", "no content type")
        start = self._endpoint.redact(reply.body[:200].decode("utf-8", "replace"))
        raise ModelProtocolError(
            f"{self._endpoint.base_url} answered with no JSON object ({kind}): {start!r}. "
            "base_url must be the address of an OpenAI-compatible API, up to and with /v1.",
            status=reply.status,
        )

    def _raise_error_in(self, fields: JSONObject) -> None:
        """Raise the error that an answer with status 200 may hold (OpenRouter, SGLang)."""
        if not fields.get("error") and fields.get("object") != "error":
            return
        error = error_in(fields)
        code = error.fields.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 502
        failure = classify(status, error, server=self._endpoint.base_url, key_hint=self._key_hint)
        failure.args = (self._endpoint.redact(str(failure)),)
        raise failure


class _Requests:
    """Sends one session's conversation; corrects requests that the server refuses."""

    def __init__(
        self,
        model: OpenAIModel,
        *,
        tools: Sequence[JSONObject],
        sampling: Sampling,
        seed: int | None,
    ) -> None:
        clash = sorted(_OURS & sampling.extra_body.keys())
        if clash:
            raise ConfigError(
                f"extra_body must not set {', '.join(clash)}; use the configuration's own fields "
                "(model_name, max_tokens_per_turn, max_token_length)."
            )
        self._model = model
        self._tools = tools
        self._sampling = sampling
        self._seed = seed
        self._fields: tuple[Dialect, bytes] | None = None

    @property
    def context_tokens(self) -> int | None:
        return self._model.context_tokens

    async def ask(
        self, history: WireHistory, allowance: Allowance, budget: TokenBudget, spent: Spent
    ) -> tuple[Allowance, JSONObject]:
        model, has_shrunk = self._model, False
        while True:
            dialect = model.dialect
            body = self._body(history, dialect, allowance.max_tokens)
            try:
                return allowance, await model.retrier.run(partial(model.request, body), spent)
            except UnsupportedParameter as error:
                if not model.adapt(error.parameter, dialect):
                    raise ModelRejected(str(error), status=error.status) from None
            except PromptTooLong as error:
                model.context_tokens = model.context_tokens or error.context_tokens
                smaller = self._smaller(allowance, budget, error)
                if has_shrunk or smaller is None:
                    raise
                allowance, has_shrunk = smaller, True

    def _smaller(
        self, allowance: Allowance, budget: TokenBudget, refusal: PromptTooLong
    ) -> Allowance | None:
        """Return a bound with which the refused request may pass, None if there is none."""
        if allowance.max_tokens is None:
            return None
        smaller = budget.shrunk(
            context_tokens=refusal.context_tokens or self._model.context_tokens,
            prompt_tokens=refusal.prompt_tokens,
        )
        if smaller is None or (smaller.max_tokens or 0) >= allowance.max_tokens:
            return None
        return smaller

    def _body(self, history: WireHistory, dialect: Dialect, max_tokens: int | None) -> list[bytes]:
        if self._fields is None or self._fields[0] != dialect:
            self._fields = (dialect, orjson.dumps(self._static_fields(dialect))[1:])
        limit = b""
        if max_tokens is not None:
            limit = b'"%s":%d,' % (dialect.max_tokens_field.encode(), max_tokens)
        return [b'{"messages":[', *history.pieces, b"],", limit, self._fields[1]]

    def _static_fields(self, dialect: Dialect) -> JSONObject:
        """Return all of the request but the messages and the token limit."""
        sampling = self._sampling
        fields: JSONObject = {"model": self._model.name, "temperature": sampling.temperature}
        if sampling.top_p is not None:
            fields["top_p"] = sampling.top_p
        if self._seed is not None and dialect.takes_seed:
            fields["seed"] = self._seed
        if self._tools:
            fields["tools"] = list(self._tools)
        fields |= self._model.reasoning_fields()
        return _merged(fields, sampling.extra_body)


def _merged(fields: JSONObject, extra: Mapping[str, Any]) -> JSONObject:
    """Return ``fields`` with ``extra`` over it; objects in both are merged one level deep."""
    merged = dict(fields)
    for key, value in extra.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both else value
    return merged
