"""Stock SGLang by its ``/generate``: ids in, ids and log-probabilities out.

Facts of the wire, read in SGLang 0.5.23 (no run of it was possible here):

* ``output_token_logprobs`` holds ``[log-probability, id, text or null]`` for each sampled token;
  ``return_prompt_token_ids`` has the prompt repeated as ``prompt_token_ids``.
* Log-probabilities are taken after the temperature and before top-p, unless the server runs with
  ``SGLANG_RETURN_ORIGINAL_LOGPROB=1``.
* A request overrides the server's ``preferred_sampling_params`` field by field, and
  ``max_new_tokens`` is 128 if it is left out: all are sent.
* ``finish_reason`` is an object. ``abort`` carries the HTTP status that it would have had, where
  it is the request's fault; with none it was broken off, for example for new weights.
* Errors are ``{"error": {"message": ...}}`` with status 400.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError, ModelError, ModelProtocolError, ModelTransient
from hermes_rl.model.failures import ServerError, classify
from hermes_rl.model.http import Endpoint
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.long_reply import LongArray, TokenLogprobs, floats, ints
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

__all__ = ["SGLangServer", "open_sglang"]


def _pairs(entries: Sequence[Sequence[Any]]) -> TokenLogprobs:
    return TokenLogprobs(ints([e[1] for e in entries]), floats([e[0] for e in entries]))


class SGLangServer(StockServer):
    """See the module."""

    path = "/generate"
    warm_mode = "after_temperature"
    long_arrays = (
        LongArray(key=b'"output_ids":', read=ints),
        LongArray(key=b'"prompt_token_ids":', read=ints),
        LongArray(key=b'"output_token_logprobs":', tail=b"]", head=b"[", read=_pairs),
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
        sampling: JSONObject = {
            "max_new_tokens": max_tokens,
            "n": 1,
            "temperature": temperature,
            "top_p": top_p,
            "top_k": -1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "ignore_eos": False,
            "skip_special_tokens": False,
        }
        if seed is not None:
            sampling["sampling_seed"] = seed
        return {
            "input_ids": list(prompt_ids),
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": 0,
            "return_text_in_logprobs": False,
            "return_prompt_token_ids": True,
            "stream": False,
        }

    def read(self, reply: JSONObject) -> Sample:
        """Return what was sampled; see :class:`~hermes_rl.model.stock_server.StockServer`."""
        meta = reply.get("meta_info")
        if not isinstance(meta, dict):
            raise ModelProtocolError(f"{self.name} answered without meta_info.", status=200)
        reason = meta.get("finish_reason")
        finish = reason.get("type") if isinstance(reason, dict) else None
        if finish not in ("stop", "length"):
            raise self._aborted(reason)
        ids = read_ids(reply.get("output_ids"), "output_ids")
        version, cached = meta.get("weight_version"), meta.get("cached_tokens")
        prompt = reply.get("prompt_token_ids")
        return Sample(
            ids=ids,
            logprobs=_logprobs(meta, ids),
            finish=finish,
            prompt_ids=None if prompt is None else read_ids(prompt, "prompt_token_ids"),
            weight_version=str(version) if version is not None else None,
            cached_tokens=cached if isinstance(cached, int) else 0,
        )

    def _aborted(self, reason: object) -> ModelError:
        fields = reason if isinstance(reason, dict) else {}
        message, status = str(fields.get("message") or reason), fields.get("status_code")
        if isinstance(status, int) and 400 <= status < 600:
            error = ServerError(message, frozenset(), "", fields)
            return classify(status, error, server=self._endpoint.base_url)
        return ModelTransient(f"{self.name} broke off while answering ({message}).")


def _logprobs(meta: JSONObject, ids: Sequence[int]) -> Sequence[float]:
    entries = meta.get("output_token_logprobs")
    if isinstance(entries, TokenLogprobs) and entries.ids == ids:
        return read_logprobs(entries.logprobs, "output_token_logprobs")
    if not isinstance(entries, list) or not all(
        isinstance(entry, list) and len(entry) >= 2 for entry in entries
    ):
        raise ModelProtocolError(
            "The server gave no log-probabilities in output_token_logprobs.", status=200
        )
    if [entry[1] for entry in entries] != list(ids):
        raise ModelProtocolError(
            "The server's log-probabilities are not those of its tokens.", status=200
        )
    return read_logprobs([entry[0] for entry in entries], "output_token_logprobs")


async def _served(endpoint: Endpoint, config: ServerConfig) -> Served:
    data = (await fetched(endpoint, "/v1/models", engine="SGLang")).get("data")
    cards = [card for card in data or [] if isinstance(card, dict)]
    card = cards[0] if cards else {}
    if card.get("owned_by") == "vllm":
        raise ConfigError(f"{endpoint.base_url} is vLLM: use --openai.server_type vllm.")
    info = await fetched(endpoint, "/get_model_info", engine="SGLang")
    path = info.get("tokenizer_path") or info.get("model_path")
    named = config.model_name if config.model_name != UNNAMED else card.get("id") or path
    return Served(
        name=str(named), tokenizer=str(path or named), context_tokens=context_of(card, config)
    )


@asynccontextmanager
async def open_sglang(
    config: ServerConfig,
    *,
    parser: ToolCallParser | None = None,
    limiter: AdaptiveLimiter | None = None,
    reasoning_in_history: ReasoningInHistory = "auto",
) -> AsyncIterator[TokenExactModel]:
    """Open a running SGLang server; its connections close with the context.

    Args:
        config: ``base_url`` is the server's address, ``tokenizer_name`` a tokenizer if the model's
            directory is not to be seen from here.
        parser: Reads tool calls; None = the ``hermes`` parser.
        limiter: Of this endpoint; None = a new one.
        reasoning_in_history: ``drop`` = as the chat template has it, see
            :mod:`hermes_rl.model.hf_renderer`.

    Raises:
        ConfigError: No address, no tokenizer, or another kind of server.
        ModelError: The server cannot be reached or refuses.
    """
    async with open_root(config, example="http://127.0.0.1:30000") as endpoint:
        served = await _served(endpoint, config)
        yield await exact_model(
            SGLangServer(endpoint, served),
            served,
            config,
            parser=parser,
            limiter=limiter,
            reasoning_in_history=reasoning_in_history,
        )
