"""What token-exact clients of stock inference servers share: opening, checking, asking.

The tokenizer and its chat template are ours, loaded once at opening; the server gets ids and gives
ids. At opening two single tokens are sampled, from which it follows whether the server's
log-probabilities are those of the raw distribution or are taken after the temperature: servers can
be started either way and do not say.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread
import orjson

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError, ModelNotFound, ModelProtocolError
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.model.address import resolve_address
from hermes_rl.model.failures import failure_of
from hermes_rl.model.hf_renderer import HFRenderer
from hermes_rl.model.hf_tokenizer import load_chat_tokenizer
from hermes_rl.model.http import Endpoint, open_endpoint
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.long_reply import LongArray, json_object, read_reply
from hermes_rl.model.retry import Retrier, Spent
from hermes_rl.model.sample import Sample
from hermes_rl.model.token_exact import TokenExactModel
from hermes_rl.model.wire import ReasoningInHistory
from hermes_rl.packed import Packed
from hermes_rl.parsers import get_parser
from hermes_rl.parsers.selftest import warn_if_template_does_not_fit
from hermes_rl.types import JSONObject, ToolCallParser

__all__ = [
    "UNNAMED",
    "Served",
    "StockServer",
    "context_of",
    "exact_model",
    "fetched",
    "open_root",
    "read_ids",
    "read_logprobs",
]

UNNAMED = "default"
"""``model_name`` where none was configured."""
SMALL_REQUEST_S = 60.0
"""For requests that wait behind nothing."""
COLD = 0.05
"""Temperature at which a token that is not certain at 1 nearly is."""
CERTAIN = -0.05
"""Log-probability above which the two modes cannot be told apart."""
CLAMPED = -9998.0
"""vLLM writes -9999 where it has no number."""

_loading = LoopLimiter(1)
"""One thread loads tokenizers: it takes seconds and mostly holds the interpreter lock."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Served:
    """What a server says about itself.

    Attributes:
        name: Model as requests name it.
        tokenizer: Where its tokenizer is, as the server knows it.
        context_tokens: Context window.
    """

    name: str
    tokenizer: str
    context_tokens: int


class StockServer(ABC):
    """A :class:`~hermes_rl.model.sample.TokenServer` over HTTP; subclasses know one wire.

    Args:
        endpoint: Open connections; its base address is the server's root, without ``/v1``.
        served: What it serves.

    Attributes:
        logprob_mode: ``raw``, another word for what they are after, or ``unknown``.
    """

    path: str
    """Where it generates."""
    warm_mode: str
    """The mode's name where log-probabilities depend on the temperature."""
    long_arrays: Sequence[LongArray]
    """What grows with the tokens in a reply."""

    def __init__(self, endpoint: Endpoint, served: Served) -> None:
        self.name = served.name
        self.context_tokens: int = served.context_tokens
        self.logprob_mode = "unknown"
        self._endpoint = endpoint

    @abstractmethod
    def request(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> JSONObject:
        """Return the body that asks for one continuation. Every sampler is named in it."""

    @abstractmethod
    def read(self, reply: JSONObject) -> Sample:
        """Return what the server sampled.

        Raises:
            ModelProtocolError: The reply lacks ids or log-probabilities.
            ModelTransient: The server broke off.
        """

    async def generate(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int | None,
        temperature: float,
        top_p: float | None,
        seed: int | None,
        timeout_s: float,
    ) -> Sample:
        """Sample one continuation; see :class:`~hermes_rl.model.sample.TokenServer`.

        Cancelling closes the connection, at which the server stops computing.
        """
        # Left out, it would be 16 or 128.
        room = max(1, self.context_tokens - len(prompt_ids))
        # Encoded at once: a list of the prompt shall not live as long as the request.
        body = orjson.dumps(
            self.request(
                prompt_ids,
                max_tokens=room if max_tokens is None else max_tokens,
                temperature=temperature,
                top_p=1.0 if top_p is None else top_p,
                seed=seed,
            )
        )
        reply = await self._endpoint.post(self.path, body, timeout_s=timeout_s)
        if reply.status != 200:
            raise failure_of(reply, server=self._endpoint.base_url)
        return await read_reply(reply.body, self.long_arrays, self.read, server=self.name)

    async def measure_logprob_mode(self, prompt_ids: Sequence[int], retrier: Retrier) -> None:
        """Set :attr:`logprob_mode` by sampling one token greedily and one nearly so."""

        async def sample(temperature: float) -> Sample:
            return await retrier.run(
                lambda left_s: self.generate(
                    prompt_ids,
                    max_tokens=1,
                    temperature=temperature,
                    top_p=None,
                    seed=0,
                    timeout_s=left_s,
                ),
                Spent(),
            )

        greedy, cold = await sample(0.0), await sample(COLD)
        if not greedy.ids or list(greedy.ids) != list(cold.ids) or greedy.logprobs[0] > CERTAIN:
            return
        moved = cold.logprobs[0] - greedy.logprobs[0]
        self.logprob_mode = self.warm_mode if moved > -greedy.logprobs[0] / 2 else "raw"


async def exact_model(
    server: StockServer,
    served: Served,
    config: ServerConfig,
    *,
    parser: ToolCallParser | None,
    limiter: AdaptiveLimiter | None,
    reasoning_in_history: ReasoningInHistory,
) -> TokenExactModel:
    """Return the model behind ``server``, with the tokenizer that belongs to it.

    Logs a warning if the template writes calls otherwise than the parser reads them.

    Raises:
        ConfigError: There is no usable tokenizer.
        ModelError: The server does not sample.
    """
    name = config.tokenizer_name or served.tokenizer
    tokenizer = await anyio.to_thread.run_sync(load_chat_tokenizer, name, limiter=_loading)
    renderer = HFRenderer(tokenizer, keeps_reasoning=reasoning_in_history != "drop")
    reader = parser or get_parser("hermes")
    await anyio.to_thread.run_sync(
        warn_if_template_does_not_fit, renderer.render_text, reader, limiter=_loading
    )
    bound = limiter or AdaptiveLimiter(config.num_max_requests_at_once, name=server.name)
    retrier = Retrier(bound)
    await server.measure_logprob_mode(tokenizer.encode("The"), retrier)
    return TokenExactModel(
        server, renderer, parser=reader, retrier=retrier, config=config, name=server.name
    )


@asynccontextmanager
async def open_root(config: ServerConfig, *, example: str) -> AsyncIterator[Endpoint]:
    """Open connections to a server's root: ``base_url`` without a ``/v1`` at its end.

    Raises:
        ConfigError: No address is configured.
    """
    if config.base_url is None:
        raise ConfigError(
            f"server_type {config.server_type} needs --openai.base_url, for example {example}"
        )
    address = resolve_address(config, os.environ)
    root = address.base_url.rstrip("/").removesuffix("/v1")
    async with open_endpoint(root, api_key=address.api_key) as endpoint:
        yield endpoint


async def fetched(endpoint: Endpoint, path: str, *, engine: str) -> JSONObject:
    """Return the JSON object at ``path``.

    Raises:
        ConfigError: There is none: it is another kind of server.
        ModelError: The server cannot be reached or refuses.
    """
    reply = await endpoint.get(path, timeout_s=SMALL_REQUEST_S)
    if reply.status != 200:
        failure = failure_of(reply, server=endpoint.base_url)
        if not isinstance(failure, ModelNotFound):
            raise failure
        raise ConfigError(
            f"{endpoint.base_url} is no {engine} server: it has no {path}. For another "
            "OpenAI-compatible server use --openai.server_type openai."
        )
    return json_object(reply.body, endpoint.base_url)


def context_of(card: JSONObject, config: ServerConfig) -> int:
    """Return the context window as the model's card has it or as configured, the smaller.

    Raises:
        ConfigError: Neither is known.
    """
    known = [
        tokens
        for tokens in (card.get("max_model_len"), config.context_tokens)
        if isinstance(tokens, int)
    ]
    if not known:
        raise ConfigError("The server names no context length: set --openai.context_tokens.")
    return min(known)


def read_ids(value: object, what: str) -> Sequence[int]:
    """Return token ids as a server gave them; raises ModelProtocolError if they are none."""
    if isinstance(value, Packed):
        return value
    if not isinstance(value, list) or set(map(type, value)) - {int}:
        raise ModelProtocolError(f"The server gave no token ids in {what}.", status=200)
    return value


def read_logprobs(values: object, what: str) -> Sequence[float]:
    """Return log-probabilities; raises ModelProtocolError if one is missing."""
    if isinstance(values, Packed) and min(values, default=0.0) >= CLAMPED:
        return values
    if not isinstance(values, list):
        raise ModelProtocolError(f"The server gave no log-probabilities in {what}.", status=200)
    for value in values:
        if type(value) not in (int, float) or value < CLAMPED:
            raise ModelProtocolError(
                f"The server gave {value!r} in {what} instead of a log-probability.", status=200
            )
    return [float(value) for value in values]
