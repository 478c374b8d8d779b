"""Loopback servers that speak the token wires of stock vLLM and SGLang, errors included.

A script decides what is sampled; the server does what the real ones do around it: it refuses
prompts that are too long, cuts at the bound, repeats the prompt's ids, lists its model::

    async def script(asked: TokenRequest) -> Sampled:
        return Sampled(ids=[5, 6, EOS])

    async with serve_vllm(script, tokenizer="/path/to/tokenizer") as server:
        config = ServerConfig(server_type="vllm", base_url=server.base_url)
        async with open_vllm(config) as model:
            ...
        assert server.requests[-1].prompt_ids == [...]

A script may also return an :class:`~hermes_rl.testing.model_server.Answer` (``refuse``, ``hang``,
``reset``, ``send`` ...). Shapes and texts: vLLM 0.32 and 0.33, SGLang 0.5.23.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import orjson
from aiohttp import web

from hermes_rl.testing.model_server import Answer, refuse
from hermes_rl.types import JSONObject

__all__ = [
    "Sampled",
    "TokenRequest",
    "TokenScript",
    "TokenServerOnLoopback",
    "serve_sglang",
    "serve_vllm",
]

KEPT_REQUESTS = 10_000
_MAX_BODY_BYTES = 256 * 2**20
_SHUTDOWN_S = 0.05


@dataclass(slots=True, frozen=True)
class TokenRequest:
    """What was asked, in words that both wires share.

    Attributes:
        number: 0-based, in order of arrival.
        body: As it came.
        prompt_ids: The prompt.
        max_tokens: Bound of the completion.
        temperature: 0 = greedy.
        seed: None = none sent.
    """

    number: int
    body: JSONObject
    prompt_ids: list[int]
    max_tokens: int
    temperature: float
    seed: int | None


@dataclass(slots=True, frozen=True, kw_only=True)
class Sampled:
    """What the server shall have sampled.

    Attributes:
        ids: Ids; cut at the request's bound, and then the turn ended by ``length``.
        logprobs: Of each id; None = made from position and id by :func:`plausible`.
        finish: ``stop``, or ``abort`` as if broken off.
        changes: Fields of the reply to overwrite, by path (``choices.0.token_ids``); None there
            removes the field.
    """

    ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    finish: str = "stop"
    changes: JSONObject = field(default_factory=dict)


TokenScript = Callable[[TokenRequest], Awaitable[Sampled | Answer]]
"""Decides what a request gets."""


def plausible(ids: Sequence[int], temperature: float = 1.0) -> list[float]:
    """Return log-probabilities that differ by position and id and shrink with ``temperature``."""
    return [
        -temperature * (0.25 + (token_id % 97 + position % 7) / 100)
        for position, token_id in enumerate(ids)
    ]


class TokenServerOnLoopback(ABC):
    """A running server; made by :func:`serve_vllm` and :func:`serve_sglang`.

    Attributes:
        base_url: Address for ``ServerConfig.base_url``.
        requests: Requests to sample, in order of arrival.
        in_flight: Requests being answered.
        abandoned: Requests whose client went away before the answer.
        after_temperature: Whether the log-probabilities made here depend on the temperature.
    """

    owner: str
    generate_path: str
    after_temperature: bool

    def __init__(
        self, script: TokenScript, *, model: str, tokenizer: str, context_tokens: int
    ) -> None:
        self.base_url = ""
        self.requests: deque[TokenRequest] = deque(maxlen=KEPT_REQUESTS)
        self.in_flight = 0
        self.abandoned = 0
        self.model = model
        self.tokenizer = tokenizer
        self.context_tokens = context_tokens
        self._script = script
        self._numbers = itertools.count()

    def app(self) -> web.Application:
        """Return the web application."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        app.router.add_post(self.generate_path, self._generate)
        app.router.add_get("/v1/models", self._models)
        return app

    @abstractmethod
    def read(self, body: JSONObject) -> tuple[list[int], int, JSONObject]:
        """Return prompt, bound and sampling parameters of a request."""

    @abstractmethod
    def refusal(self, prompt_tokens: int, max_tokens: int) -> Answer:
        """Return the answer to a request that does not fit into the context."""

    @abstractmethod
    def reply(
        self, asked: TokenRequest, ids: list[int], logprobs: list[float], finish: str
    ) -> JSONObject:
        """Return the reply to a request that was sampled."""

    def fits(self, prompt_tokens: int, max_tokens: int) -> bool:
        """Say whether prompt and completion fit."""
        return prompt_tokens + max_tokens <= self.context_tokens

    async def _models(self, request: web.Request) -> web.StreamResponse:
        card = {
            "id": self.model,
            "object": "model",
            "created": 1,
            "owned_by": self.owner,
            "root": self.tokenizer if self.owner == "vllm" else self.model,
            "parent": None,
            "max_model_len": self.context_tokens,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        prompt, max_tokens, sampling = self.read(body)
        seed = sampling.get("seed", sampling.get("sampling_seed"))
        temperature = float(sampling.get("temperature", 1.0))
        asked = TokenRequest(next(self._numbers), body, prompt, max_tokens, temperature, seed)
        self.requests.append(asked)
        self.in_flight += 1
        try:
            if not self.fits(len(prompt), max_tokens):
                return await self.refusal(len(prompt), max_tokens)(request)
            answer = await self._script(asked)
            if not isinstance(answer, Sampled):
                return await answer(request)
            body = orjson.dumps(self._sampled(asked, answer))
            return web.Response(body=body, content_type="application/json")
        except anyio.get_cancelled_exc_class():
            self.abandoned += 1
            raise
        finally:
            self.in_flight -= 1

    def _sampled(self, asked: TokenRequest, answer: Sampled) -> JSONObject:
        ids = list(answer.ids)[: asked.max_tokens]
        finish = answer.finish if len(ids) == len(answer.ids) else "length"
        scale = asked.temperature or 1.0 if self.after_temperature else 1.0
        made = plausible(ids, scale) if answer.logprobs is None else answer.logprobs
        reply = self.reply(asked, ids, list(made)[: len(ids)], finish)
        for path, value in answer.changes.items():
            _change(reply, path.split("."), value)
        return reply


def _change(reply: JSONObject, path: list[str], value: object) -> None:
    place: object = reply
    for key in path[:-1]:
        place = place[int(key)] if isinstance(place, list) else place[key]  # type: ignore[index]
    assert isinstance(place, dict)
    if value is None:
        place.pop(path[-1], None)
    else:
        place[path[-1]] = value


class _VLLM(TokenServerOnLoopback):
    owner = "vllm"
    after_temperature = False
    generate_path = "/v1/completions"

    def read(self, body: JSONObject) -> tuple[list[int], int, JSONObject]:
        return body["prompt"], body.get("max_tokens") or 16, body

    def refusal(self, prompt_tokens: int, max_tokens: int) -> Answer:
        message = (
            f"This model's maximum context length is {self.context_tokens} tokens. However, your "
            f"prompt contains {prompt_tokens} input tokens, which exceeds this limit even without "
            "any output tokens. Please reduce the length of the input prompt."
        )
        return refuse(400, message, type="BadRequestError", param="input_tokens", code=400)

    def reply(
        self, asked: TokenRequest, ids: list[int], logprobs: list[float], finish: str
    ) -> JSONObject:
        wants_ids = asked.body.get("return_token_ids") is True
        choice: JSONObject = {
            "index": 0,
            "text": "",
            "logprobs": None,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": ids if wants_ids else None,
            "prompt_logprobs": None,
            "prompt_token_ids": asked.prompt_ids if wants_ids else None,
        }
        if asked.body.get("logprobs") is not None:
            choice["logprobs"] = {
                "text_offset": list(range(len(ids))),
                "token_logprobs": logprobs,
                "tokens": [str(token_id) for token_id in ids],
                "top_logprobs": [None for _ in ids],
            }
        usage = {
            "prompt_tokens": len(asked.prompt_ids),
            "total_tokens": len(asked.prompt_ids) + len(ids),
            "completion_tokens": len(ids),
            "prompt_tokens_details": None,
        }
        return {
            "id": f"cmpl-{asked.number}",
            "object": "text_completion",
            "created": 1,
            "model": self.model,
            "choices": [choice],
            "usage": usage,
        }


class _SGLang(TokenServerOnLoopback):
    owner = "sglang"
    after_temperature = True
    generate_path = "/generate"
    weight_version = "default"

    def app(self) -> web.Application:
        app = super().app()
        app.router.add_get("/get_model_info", self._model_info)
        return app

    async def _model_info(self, request: web.Request) -> web.StreamResponse:
        paths = {"model_path": self.tokenizer, "tokenizer_path": self.tokenizer}
        return web.json_response({**paths, "is_generation": True, "weight_version": "default"})

    def fits(self, prompt_tokens: int, max_tokens: int) -> bool:
        return prompt_tokens < self.context_tokens and super().fits(prompt_tokens, max_tokens)

    def read(self, body: JSONObject) -> tuple[list[int], int, JSONObject]:
        sampling = body["sampling_params"]
        return body["input_ids"], sampling.get("max_new_tokens", 128), sampling

    def refusal(self, prompt_tokens: int, max_tokens: int) -> Answer:
        message = (
            f"The input ({prompt_tokens} tokens) is longer than the model's context length "
            f"({self.context_tokens} tokens)."
        )
        if prompt_tokens < self.context_tokens:
            message = (
                "Requested token count exceeds the model's maximum context length of "
                f"{self.context_tokens} tokens. You requested a total of "
                f"{prompt_tokens + max_tokens} tokens: {prompt_tokens} tokens from the input "
                f"messages and {max_tokens} tokens for the completion. Please reduce the number "
                "of tokens in the input messages or the completion to fit within the limit."
            )
        return refuse(400, message)

    def reply(
        self, asked: TokenRequest, ids: list[int], logprobs: list[float], finish: str
    ) -> JSONObject:
        reasons: dict[str, JSONObject] = {
            "stop": {"type": "stop", "matched": ids[-1] if ids else None},
            "length": {"type": "length", "length": asked.max_tokens},
            "abort": {"type": "abort", "message": "Abort in waiting queue"},
        }
        meta: JSONObject = {
            "id": f"{asked.number:032x}",
            "finish_reason": reasons[finish],
            "prompt_tokens": len(asked.prompt_ids),
            "weight_version": self.weight_version,
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "e2e_latency": 0.01,
        }
        if asked.body.get("return_logprob"):
            pairs = zip(logprobs, ids, strict=True)
            meta["output_token_logprobs"] = [
                [logprob, token_id, None] for logprob, token_id in pairs
            ]
            meta["output_token_logprobs_length"] = len(ids)
            meta["input_token_logprobs"] = []
        reply: JSONObject = {"text": "", "output_ids": ids, "meta_info": meta}
        if asked.body.get("return_prompt_token_ids"):
            reply["prompt_token_ids"] = asked.prompt_ids
        return reply


@asynccontextmanager
async def _serving(
    server: TokenServerOnLoopback, port: int
) -> AsyncIterator[TokenServerOnLoopback]:
    # A client that goes away cancels the handler, as the real servers abort its request.
    runner = web.AppRunner(
        server.app(), access_log=None, shutdown_timeout=_SHUTDOWN_S, handler_cancellation=True
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
        server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield server
    finally:
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


@asynccontextmanager
async def serve_vllm(
    script: TokenScript,
    *,
    tokenizer: str,
    model: str = "tiny",
    context_tokens: int = 4096,
    port: int = 0,
) -> AsyncIterator[TokenServerOnLoopback]:
    """Serve vLLM's ``/v1/completions`` and ``/v1/models`` on 127.0.0.1.

    Args:
        script: Decides what is sampled.
        tokenizer: What the server says its model is: a directory with a tokenizer.
        model: Name of the model.
        context_tokens: ``max_model_len``.
        port: 0 = any free one.
    """
    server = _VLLM(script, model=model, tokenizer=tokenizer, context_tokens=context_tokens)
    async with _serving(server, port):
        yield server


@asynccontextmanager
async def serve_sglang(
    script: TokenScript,
    *,
    tokenizer: str,
    model: str = "tiny",
    context_tokens: int = 4096,
    port: int = 0,
) -> AsyncIterator[TokenServerOnLoopback]:
    """Serve SGLang's ``/generate``, ``/get_model_info`` and ``/v1/models`` on 127.0.0.1.

    The arguments are those of :func:`serve_vllm`.
    """
    server = _SGLang(script, model=model, tokenizer=tokenizer, context_tokens=context_tokens)
    async with _serving(server, port):
        yield server
