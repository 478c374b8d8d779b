"""The wire of llama.cpp's server, spoken by a server made here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from hermes_rl.config import ServerConfig
from hermes_rl.errors import (
    ConfigError,
    ModelNotFound,
    ModelProtocolError,
    ModelTransient,
)
from hermes_rl.model.failures import PromptTooLong
from hermes_rl.model.llamacpp import LlamaCppServer, connect, token_exact_model
from hermes_rl.model.sample import Sample
from hermes_rl.types import JSONObject

PROPS: JSONObject = {
    "total_slots": 3,
    "model_path": "/models/tiny-1b.gguf",
    "default_generation_settings": {"n_ctx": 512},
}
Handler = Callable[[JSONObject], JSONObject | tuple[int, JSONObject]]


def sampled(ids: list[int], *, stop_type: str = "limit", **other: Any) -> JSONObject:
    return {
        "tokens": ids,
        "completion_probabilities": [{"id": i, "token": "x", "logprob": -i / 100} for i in ids],
        "stop_type": stop_type,
        "truncated": False,
        "tokens_evaluated": 3,
        "timings/cache_n": 2,
        **other,
    }


class Fake:
    """Answers as ``completion`` says and remembers what it was asked."""

    def __init__(self, completion: Handler) -> None:
        self.completion = completion
        self.asked: list[JSONObject] = []
        self.props: tuple[int, JSONObject] = (200, PROPS)

    async def complete(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.asked.append(body)
        answer = self.completion(body)
        status, fields = answer if isinstance(answer, tuple) else (200, answer)
        return _json(fields, status)

    async def tokenize(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        assert body.get("parse_special", body["add_special"]) is bool(body["add_special"])
        bos = [1_000] if body["add_special"] else []
        return _json({"tokens": bos + [ord(char) for char in body["content"]]})

    async def detokenize(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        return _json({"content": "".join(map(chr, body["tokens"]))})

    async def show_props(self, request: web.Request) -> web.Response:
        status, fields = self.props
        return _json(fields, status)


def _json(fields: JSONObject, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(fields), status=status, content_type="application/json")


@asynccontextmanager
async def listening(fake: Fake) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/completion", fake.complete)
    app.router.add_post("/tokenize", fake.tokenize)
    app.router.add_post("/detokenize", fake.detokenize)
    app.router.add_get("/props", fake.show_props)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(fake: Fake, *, suffix: str = "", **other: Any) -> AsyncIterator[LlamaCppServer]:
    async with listening(fake) as url:
        config = ServerConfig(server_type="llamacpp", base_url=url + suffix)
        async with connect(config, environ={}, **other) as server:
            yield server


async def generate(server: LlamaCppServer, **other: Any) -> Sample:
    settings: dict[str, Any] = {"max_tokens": 2, "temperature": 0.5, "top_p": 0.9, "seed": 4}
    return await server.generate([7, 8, 9], **settings | other, timeout_s=10)


async def test_a_sample_holds_the_ids_and_their_logprobs() -> None:
    async with connected(Fake(lambda body: sampled([5, 6]))) as server:
        sample = await generate(server)
    assert (sample.ids, sample.logprobs, sample.finish) == ([5, 6], [-0.05, -0.06], "length")
    assert sample.cached_tokens == 2
    assert (server.name, server.context_tokens, server.slots) == ("tiny-1b", 512, 3)


async def test_all_samplers_are_sent_and_no_stop_string() -> None:
    fake = Fake(lambda body: sampled([5], stop_type="eos"))
    async with connected(fake) as server:
        assert (await generate(server)).finish == "stop"
        await generate(server, max_tokens=None, top_p=None, seed=None)
    first, second = fake.asked
    assert (first["prompt"], first["n_predict"], first["seed"]) == ([7, 8, 9], 2, 4)
    assert (first["temperature"], first["top_p"]) == (0.5, 0.9)
    neutral = {"top_k": 0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0, "stop": []}
    assert first | neutral == first
    assert first["cache_prompt"] is first["return_tokens"] is True
    assert first["stream"] is first["post_sampling_probs"] is False
    assert (second["n_predict"], second["top_p"], second["seed"]) == (-1, 1.0, -1)


async def test_logprobs_that_the_server_left_out_are_asked_for_token_by_token() -> None:
    def answer(body: JSONObject) -> JSONObject:
        if body["n_predict"] == 2:
            return sampled([201, 202], completion_probabilities=[{"id": 202, "logprob": -9.0}])
        wanted = {3: 201, 4: 202}[len(body["prompt"])]
        top = [{"id": 97, "token": "a", "logprob": -3.5}, {"id": 20, "token": "", "logprob": -4.0}]
        if body["n_probs"] > 1_000:
            top.append({"id": wanted, "token": '"}', "bytes": [240], "logprob": -wanted / 10})
        return {"completion_probabilities": [{"id": 97, "logprob": -3.5, "top_logprobs": top}]}

    fake = Fake(answer)
    async with connected(fake) as server:
        sample = await generate(server)
    assert sample.logprobs == [-20.1, -20.2]
    assert fake.asked[1]["logit_bias"][0][0] == ord("a")
    assert [len(body["prompt"]) for body in fake.asked] == [3, 3, 3, 4, 4]


async def test_a_logprob_that_cannot_be_found_is_an_error() -> None:
    def answer(body: JSONObject) -> JSONObject:
        if body["n_predict"] == 2:
            return sampled([201, 202], completion_probabilities=[])
        return {"completion_probabilities": [{"id": 97, "logprob": -1.0, "top_logprobs": []}]}

    async with connected(Fake(answer)) as server:
        with pytest.raises(ModelProtocolError, match="token 201"):
            await generate(server)


@pytest.mark.parametrize(
    "answer",
    [
        sampled([5], tokens_evaluated=4),
        sampled([5], truncated=True),
        sampled([5], tokens="5"),
        sampled([5], tokens=[True]),
        sampled([5], completion_probabilities=[{"id": 6, "logprob": -1.0}]),
        sampled([5], completion_probabilities=[{"id": 5, "logprob": 0.5}]),
    ],
    ids=["other prompt", "truncated", "no ids", "no ids either", "of other ids", "no logprob"],
)
async def test_an_answer_that_is_not_exact_is_refused(answer: JSONObject) -> None:
    async with connected(Fake(lambda body: answer)) as server:
        with pytest.raises(ModelProtocolError):
            await generate(server)


async def test_refusals_have_their_classes() -> None:
    too_long = {
        "error": {
            "code": 400,
            "message": "request (9 tokens) exceeds the available context size (4 tokens)",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9,
            "n_ctx": 4,
        }
    }
    loading = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}
    answers: list[tuple[int, JSONObject]] = [(400, too_long), (503, loading)]
    async with connected(Fake(lambda body: answers.pop(0))) as server:
        with pytest.raises(PromptTooLong) as refusal:
            await generate(server)
        with pytest.raises(ModelTransient):
            await generate(server)
    assert (refusal.value.context_tokens, refusal.value.prompt_tokens) == (4, 9)


async def test_a_generation_that_was_broken_off_is_transient() -> None:
    async with connected(Fake(lambda body: sampled([5], stop_type="none"))) as server:
        with pytest.raises(ModelTransient):
            await generate(server)


async def test_text_becomes_ids_with_the_models_first_token_only_where_asked() -> None:
    async with connected(Fake(lambda body: sampled([]))) as server:
        assert await server.tokenize("ab") == [97, 98]
        assert await server.tokenize("") == []
        assert await server.opening() == [1_000]
        assert await server.opening() == [1_000]
        assert await server.detokenize([97, 98]) == "ab"


async def test_the_address_may_end_in_v1() -> None:
    async with connected(Fake(lambda body: sampled([5])), suffix="/v1/") as server:
        assert (await generate(server)).ids == [5]


async def test_what_is_no_llamacpp_server_is_said_so() -> None:
    fake = Fake(lambda body: sampled([5]))
    for props in ((404, {}), (200, {"other": 1})):
        fake.props = props
        with pytest.raises(ConfigError, match="is no llama"):
            async with connected(fake):
                pass


async def test_an_address_is_needed() -> None:
    with pytest.raises(ConfigError, match="base_url"):
        async with connect(ServerConfig(server_type="llamacpp")):
            pass


async def test_a_server_that_is_gone_for_good_is_not_asked_again() -> None:
    fake = Fake(lambda body: sampled([5]))
    gone = ModelNotFound("ended with code -9")
    async with AsyncExitStack() as running, AsyncExitStack() as open_connections:
        url = await running.enter_async_context(listening(fake))
        config = ServerConfig(server_type="llamacpp", base_url=url)
        server = await open_connections.enter_async_context(
            connect(config, environ={}, diagnose=lambda: gone)
        )
        await generate(server)
        await running.aclose()
        with pytest.raises(ModelNotFound, match="-9"):
            await generate(server)


async def test_as_many_calls_run_at_once_as_the_server_has_slots() -> None:
    async with connected(Fake(lambda body: sampled([5]))) as server:
        model = token_exact_model(server, ServerConfig(), parser=None, reasoning_in_history="auto")
        assert model.retrier.limiter.limit == 3
        assert model.parser.name == "hermes"


async def test_dropping_reasoning_is_refused() -> None:
    async with connected(Fake(lambda body: sampled([5]))) as server:
        with pytest.raises(ConfigError, match="fork"):
            token_exact_model(server, ServerConfig(), parser=None, reasoning_in_history="drop")
