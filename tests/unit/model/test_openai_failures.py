"""Every way in which a model call can fail, against a real HTTP server on loopback."""

import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import orjson
import pytest
from aiohttp import web

from hermes_rl.config import ServerConfig
from hermes_rl.errors import (
    ModelNotFound,
    ModelProtocolError,
    ModelRateLimited,
    ModelRejected,
    ModelTransient,
    ModelUnauthorized,
)
from hermes_rl.model import ModelSession, Sampling
from hermes_rl.model.openai import OpenAIModel, open_openai
from hermes_rl.model.retry import RetryPolicy
from hermes_rl.testing.model_server import (
    Answer,
    ModelServer,
    Script,
    always,
    answer_in_turn,
    call_tool,
    completion,
    cut_off,
    hang,
    refuse,
    reset,
    say,
    send,
    serve_model,
)
from hermes_rl.types import Completion, Message, StopReason

FAST = RetryPolicy(first_delay_s=0.0, first_rate_limited_delay_s=0.0)
HELLO: list[Message] = [{"role": "user", "content": "hello"}]
KEY = "sk-test-0123456789abcdef"


@asynccontextmanager
async def connected(
    script: Script, *, policy: RetryPolicy = FAST, timeout_s: int = 30
) -> AsyncIterator[tuple[OpenAIModel, ModelServer]]:
    async with serve_model(script) as server:
        config = ServerConfig(
            base_url=server.base_url,
            model_name="m",
            api_key=KEY,
            timeout=timeout_s,
            context_tokens=100_000,
        )
        async with open_openai(config, policy=policy, environ={}) as model:
            yield model, server


async def ask(model: OpenAIModel, sampling: Sampling | None = None) -> Completion:
    async with model.session(tools=(), sampling=sampling or Sampling()) as session:
        return await session.complete(HELLO)


@pytest.mark.parametrize(
    "failure",
    [
        refuse(429, retry_after=0),
        refuse(429),
        refuse(500),
        refuse(503, retry_after=0),
        refuse(408),
        reset(),
        cut_off(),
        send(b"<html>gateway</html>", content_type="text/html"),
        send(b'{"choices": ['),
        send(b"[]"),
        send(b'{"choices": []}'),
        send(b'{"choices": null}'),
        send(b'{"choices": [{"index": 0, "finish_reason": "stop"}]}'),
        send(b'{"error": {"code": 502, "message": "provider down"}}'),
        send(b'{"object": "error", "message": "overloaded", "code": 503}'),
        completion({"content": "half"}, finish_reason="abort"),
        completion({"content": ""}, finish_reason="error"),
    ],
    ids=[
        "429 with Retry-After",
        "429",
        "500",
        "503",
        "408",
        "reset",
        "cut off",
        "HTML with 200",
        "torn JSON",
        "a JSON list",
        "empty choices",
        "null choices",
        "choice without message",
        "error with 200",
        "SGLang error with 200",
        "aborted by the server",
        "broken off",
    ],
)
async def test_a_passing_failure_is_retried_and_then_forgotten(failure: Answer) -> None:
    script = answer_in_turn([failure, failure], then=say("fine"))
    async with connected(script) as (model, server):
        answer = await ask(model)
        assert answer.message == {"role": "assistant", "content": "fine"}
        assert answer.usage.requests == len(server.requests) == 3
        assert model.retrier.limiter.in_flight == 0


async def test_a_passing_time_out_is_retried() -> None:
    async with connected(answer_in_turn([hang()], then=say("fine")), timeout_s=1) as (model, _):
        answer = await ask(model)
        assert answer.usage.requests == 2
        assert answer.timings.waiting_s > 0.9
        assert answer.timings.model_s < 0.9


async def test_one_failing_call_is_not_more_requests_than_the_policy_says() -> None:
    async with connected(always(refuse(500, "boom"))) as (model, server):
        with pytest.raises(ModelTransient, match="HTTP 500: boom Gave up after 8 requests"):
            await ask(model)
        assert len(server.requests) == 8


async def test_rate_limiting_without_end_is_an_error_of_its_own() -> None:
    policy = RetryPolicy(max_attempts=3, first_rate_limited_delay_s=0.0)
    async with connected(always(refuse(429, "too many")), policy=policy) as (model, server):
        with pytest.raises(ModelRateLimited, match="too many") as caught:
            await ask(model)
        assert caught.value.status == 429
        assert caught.value.retryable
        assert len(server.requests) == 3


async def test_retry_after_is_waited_for_and_is_no_model_time() -> None:
    script = answer_in_turn([refuse(429, retry_after=0.3), say("fine")])
    async with connected(script) as (model, _):
        began_at = time.monotonic()
        answer = await ask(model)
        assert time.monotonic() - began_at >= 0.3
        assert answer.timings.waiting_s >= 0.3
        assert answer.timings.model_s < 0.3


async def test_an_error_in_the_choice_has_its_own_class() -> None:
    """OpenRouter reports so what its provider said while answering."""
    choice = {
        "message": {"role": "assistant", "content": ""},
        "finish_reason": "error",
        "error": {"code": 429, "message": "provider busy"},
    }
    busy = send(orjson.dumps({"choices": [choice]}))
    policy = RetryPolicy(max_attempts=2, first_rate_limited_delay_s=0.0)
    async with connected(always(busy), policy=policy) as (model, _):
        with pytest.raises(ModelRateLimited, match="provider busy"):
            await ask(model)
        assert model.retrier.limiter.episodes == 2


async def test_a_connection_refused_is_transient_and_names_the_server() -> None:
    async with serve_model(always(say("never"))) as server:
        gone = server.base_url
    policy = RetryPolicy(max_attempts=2, first_delay_s=0.0)
    config = ServerConfig(base_url=gone, model_name="m", context_tokens=1000)
    async with open_openai(config, policy=policy, environ={}) as model:
        with pytest.raises(ModelTransient, match=gone):
            await ask(model)


async def test_a_hanging_server_is_given_up_after_the_time_out() -> None:
    policy = RetryPolicy(max_attempts=1)
    async with connected(always(hang()), policy=policy, timeout_s=1) as (model, _):
        with pytest.raises(ModelTransient, match="did not answer within 1 s"):
            await ask(model)


async def trickle(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(100):
        await response.write(b" ")
        await anyio.sleep(0.05)
    return response


async def test_an_answer_that_trickles_past_the_time_out_is_given_up() -> None:
    policy = RetryPolicy(max_attempts=1)
    async with connected(always(trickle), policy=policy, timeout_s=1) as (model, _):
        with anyio.fail_after(4), pytest.raises(ModelTransient, match="within 1 s"):
            await ask(model)


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (refuse(401, "Incorrect API key"), ModelUnauthorized, "OPENAI_API_KEY"),
        (refuse(403, "not for you"), ModelUnauthorized, "not for you"),
        (refuse(402, "no credit left"), ModelUnauthorized, "no credit left"),
        (refuse(404, "no model m"), ModelNotFound, "model_name"),
    ],
)
async def test_failures_that_concern_every_rollout_stop_the_run_at_once(
    answer: Answer, error: type[Exception], text: str
) -> None:
    async with connected(always(answer)) as (model, server):
        with pytest.raises(error, match=text) as caught:
            await ask(model)
        assert caught.value.stops_run  # type: ignore[attr-defined]
        assert "\n" not in str(caught.value)
        assert len(server.requests) == 1


async def test_a_rejected_request_is_not_retried() -> None:
    async with connected(always(refuse(400, "messages[0] is odd"))) as (model, server):
        with pytest.raises(ModelRejected, match="is odd"):
            await ask(model)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        refuse(400, "maximum context length is 4096 tokens, you sent more", code=400),
        refuse(400, "too long", code="context_length_exceeded"),
        refuse(400, "no", type="exceed_context_size_error", n_ctx=4096, n_prompt_tokens=5000),
        send(b'{"error": {"code": 400, "message": "maximum context length is 4096 tokens"}}'),
    ],
)
async def test_an_overlong_prompt_is_a_limit_not_an_error(answer: Answer) -> None:
    async with connected(always(answer)) as (model, server):
        stopped = await ask(model)
        assert stopped.message is None
        assert stopped.stop is StopReason.CONTEXT_LENGTH
        assert stopped.usage.requests == len(server.requests) == 1


async def test_a_content_filter_before_the_turn_is_a_limit() -> None:
    async with connected(always(refuse(400, "no", code="content_filter"))) as (model, server):
        stopped = await ask(model)
        assert (stopped.message, stopped.stop) == (None, StopReason.CONTENT_FILTER)
        assert len(server.requests) == 1


async def test_a_content_filter_within_the_turn_keeps_what_was_said() -> None:
    script = answer_in_turn(
        [say("half a", finish_reason="content_filter"), say("", finish_reason="content_filter")]
    )
    async with connected(script) as (model, _):
        half, nothing = await ask(model), await ask(model)
    assert half.message == {"role": "assistant", "content": "half a"}
    assert half.stop is nothing.stop is StopReason.CONTENT_FILTER
    assert nothing.message is None


async def test_persistent_nonsense_is_a_protocol_error_that_points_at_base_url() -> None:
    page = send(b"<html><title>Login</title></html>", content_type="text/html")
    async with connected(always(page)) as (model, server):
        with pytest.raises(ModelProtocolError, match=r"text/html.*Login.*base_url"):
            await ask(model)
        assert len(server.requests) == 3


async def test_an_endless_answer_is_cut_off() -> None:
    body = b'{"padding": "' + b"x" * (9 * 2**20) + b'"}'
    async with connected(always(send(body))) as (model, _):
        with pytest.raises(ModelProtocolError, match="larger than 8388608 bytes"):
            await ask(model)


async def test_a_megabyte_of_arguments_arrives_whole() -> None:
    arguments = orjson.dumps({"content": "x" * 2**20}).decode()
    script = answer_in_turn([call_tool("write_file", arguments), say("done")])
    async with connected(script) as (model, server):
        async with model.session(tools=(), sampling=Sampling()) as session:
            first = await session.complete(HELLO)
            assert first.tool_calls[0].arguments == arguments
            assert first.message is not None
            result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "ok"}
            await session.complete([*HELLO, first.message, result])
        sent = server.requests[1].messages[1]["tool_calls"][0]["function"]["arguments"]
        assert sent == arguments


async def test_invalid_arguments_are_kept_but_replayed_as_an_empty_object() -> None:
    broken = '{"command": "ls'
    script = answer_in_turn([call_tool("terminal", broken), say("sorry")])
    async with (
        connected(script) as (model, server),
        model.session(tools=(), sampling=Sampling()) as session,
    ):
        first = await session.complete(HELLO)
        assert first.message is not None
        await session.complete([*HELLO, first.message])
    assert first.tool_calls[0].arguments == broken
    assert first.message["tool_calls"][0]["function"]["arguments"] == broken
    replayed = server.requests[1].messages[1]["tool_calls"][0]
    assert replayed["function"] == {"name": "terminal", "arguments": "{}"}


async def test_cancelling_a_call_frees_its_permit() -> None:
    arrived = anyio.Event()

    async def hang_after_arrival(request: web.Request) -> web.StreamResponse:
        arrived.set()
        return await hang()(request)

    async with connected(always(hang_after_arrival)) as (model, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, model)
            await arrived.wait()
            assert model.retrier.limiter.in_flight == 1
            tasks.cancel_scope.cancel()
        assert model.retrier.limiter.in_flight == 0


async def test_the_server_is_told_to_stop_when_a_call_is_cancelled() -> None:
    """A client that goes away must close its connection, else the server keeps on sampling."""
    gone = anyio.Event()

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            try:
                while True:
                    await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                gone.set()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    config = ServerConfig(base_url=f"http://127.0.0.1:{port}/v1", model_name="m", context_tokens=9)
    async with listener, anyio.create_task_group() as servers:
        servers.start_soon(listener.serve, serve)
        async with open_openai(config, environ={}) as model:
            with anyio.move_on_after(0.2):
                await ask(model)
            with anyio.fail_after(60):
                await gone.wait()
        servers.cancel_scope.cancel()


async def test_three_hundred_calls_are_in_flight_at_once() -> None:
    everyone_is_here = anyio.Event()
    arrived = 0

    async def together(request: web.Request) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        if arrived == 300:
            everyone_is_here.set()
        await everyone_is_here.wait()
        return await say("hi")(request)

    async with connected(always(together)) as (model, server):
        model.retrier.limiter._set(300.0)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for _ in range(300):
                    tasks.start_soon(ask, model)
        assert server.peak_in_flight == 300


async def test_the_key_is_sent_but_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    echo = refuse(401, f"Incorrect API key provided: {KEY}. Bearer {KEY}")
    nonsense = send(f"<html>{KEY}</html>".encode())
    inside = send(orjson.dumps({"error": {"code": 400, "message": f"bad key {KEY}"}}))
    shown = []
    for answer in (echo, nonsense, inside, reset()):
        policy = RetryPolicy(max_attempts=2, max_protocol_attempts=1, first_delay_s=0.0)
        async with connected(always(answer), policy=policy) as (model, server):
            try:
                await ask(model)
            except (ModelUnauthorized, ModelProtocolError, ModelRejected, ModelTransient) as error:
                shown += [str(error), repr(error), *map(repr, _chain(error))]
            assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"
            shown += [repr(model), repr(model.config), str(model.config.model_dump())]
            shown += [repr(vars(model._endpoint)["_headers"]), repr(model._endpoint)]
    assert len(shown) > 20
    assert not [text for text in [*shown, caplog.text] if KEY in text]
    assert "[key]" in shown[0]


def _chain(error: BaseException) -> list[BaseException]:
    """Return everything that hangs on an error, as a traceback printer sees it."""
    found: list[BaseException] = []
    pending = [error.__cause__, error.__context__]
    while pending:
        linked = pending.pop()
        if linked is not None and linked not in found:
            found.append(linked)
            pending += [linked.__cause__, linked.__context__]
    return found


async def test_a_session_survives_a_failed_call() -> None:
    policy = RetryPolicy(max_attempts=1)
    script = answer_in_turn([refuse(500), say("back")])
    async with connected(script, policy=policy) as (model, _):
        session: ModelSession
        async with model.session(tools=(), sampling=Sampling()) as session:
            with pytest.raises(ModelTransient):
                await session.complete(HELLO)
            answer = await session.complete(HELLO)
    assert answer.message == {"role": "assistant", "content": "back"}
