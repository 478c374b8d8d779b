"""Stock vLLM by its ``/v1/completions``: ids in, ids and log-probabilities out.

Facts of the wire, read in vLLM 0.33 and measured on 0.32:

* ``return_token_ids`` gives the sampled ids and the prompt's; ``logprobs: 0`` the log-probability
  of each sampled token and of no other. The end token is one of both.
* A sampler that a request does not name has the value of the model's ``generation_config.json``,
  and ``max_tokens`` is 16: all are sent.
* ``--logprobs-mode`` decides what log-probabilities are of; by default the raw distribution.
* ``root`` in ``/v1/models`` is the model's directory or repository.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError, ModelProtocolError, ModelTransient, UnknownName
from hermes_rl.model.http import Endpoint
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.long_reply import LongArray, floats, ints
from hermes_rl.model.sample import Sample
from hermes_rl.model.stock_server import (
    UNNAMED,
    Served,
    StockServer,
    context_of,
    exact_model,
    fetched,
    open_root,
    read_ids,
    read_logprobs,
)
from hermes_rl.model.token_exact import TokenExactModel
from hermes_rl.model.wire import ReasoningInHistory
from hermes_rl.types import JSONObject, ToolCallParser

__all__ = ["VLLMServer", "open_vllm"]


class VLLMServer(StockServer):
    """See the module."""

    path = "/v1/completions"
    warm_mode = "processed"
    long_arrays = (
        LongArray(key=b'"token_ids":', read=ints),
        LongArray(key=b'"prompt_token_ids":', read=ints),
        LongArray(key=b'"token_logprobs":', read=floats),
        LongArray(key=b'"text_offset":'),
        LongArray(key=b'"tokens":', after=b'},"finish_reason":'),  # and top_logprobs
    )

    def request(
        self,
        prompt_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        top_p: float,
        seed: int | None,
    ) -> JSONObject:
        """Return the body; see :class:`~hermes_rl.model.stock_server.StockServer`."""
        body: JSONObject = {
            "model": self.name,
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "n": 1,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "stream": False,
        }
        return body if seed is None else {**body, "seed": seed}

    def read(self, reply: JSONObject) -> Sample:
        """Return what was sampled; see :class:`~hermes_rl.model.stock_server.StockServer`."""
        choices = reply.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            raise ModelProtocolError(f"{self.name} answered without any choice.", status=200)
        finish = choice.get("finish_reason")
        if finish not in ("stop", "length"):
            raise ModelTransient(f"{self.name} broke off while answering ({finish}).")
        logprobs = choice.get("logprobs")
        values = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        return Sample(
            ids=read_ids(choice.get("token_ids"), "token_ids"),
            logprobs=read_logprobs(values, "logprobs.token_logprobs"),
            finish=finish,
            prompt_ids=read_ids(choice.get("prompt_token_ids"), "prompt_token_ids"),
            cached_tokens=_cached(reply.get("usage")),
        )


def _cached(usage: object) -> int:
    details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return cached if isinstance(cached, int) else 0


async def _served(endpoint: Endpoint, config: ServerConfig) -> Served:
    data = (await fetched(endpoint, "/v1/models", engine="vLLM")).get("data")
    cards = {str(card.get("id")): card for card in data or [] if isinstance(card, dict)}
    if not cards:
        raise ConfigError(f"{endpoint.base_url} serves no model.")
    name = next(iter(cards)) if config.model_name == UNNAMED else config.model_name
    if name not in cards:
        raise UnknownName.of(f"model at {endpoint.base_url}", name, cards)
    card = cards[name]
    if card.get("owned_by") == "sglang":
        raise ConfigError(f"{endpoint.base_url} is SGLang: use --openai.server_type sglang.")
    # An adapter has a directory of its own, and the tokenizer and context of its base.
    base = cards.get(str(card.get("parent")), card)
    return Served(
        name=name,
        tokenizer=str(base.get("root") or name),
        context_tokens=context_of(base, config),
    )


@asynccontextmanager
async def open_vllm(
    config: ServerConfig,
    *,
    parser: ToolCallParser | None = None,
    limiter: AdaptiveLimiter | None = None,
    reasoning_in_history: ReasoningInHistory = "auto",
) -> AsyncIterator[TokenExactModel]:
    """Open a running vLLM server; its connections close with the context.

    Args:
        config: ``base_url`` is the server's address, ``tokenizer_name`` a tokenizer if the model's
            directory is not to be seen from here.
        parser: Reads tool calls; None = the ``hermes`` parser.
        limiter: Of this endpoint; None = a new one.
        reasoning_in_history: ``drop`` = as the chat template has it, see
            :mod:`hermes_rl.model.hf_renderer`.

    Raises:
        ConfigError: No address, no such model, no tokenizer, or another kind of server.
        ModelError: The server cannot be reached or refuses.
    """
    async with open_root(config, example="http://127.0.0.1:8000/v1") as endpoint:
        served = await _served(endpoint, config)
        yield await exact_model(
            VLLMServer(endpoint, served),
            served,
            config,
            parser=parser,
            limiter=limiter,
            reasoning_in_history=reasoning_in_history,
        )
