"""The scripted model server that plug-in authors test against."""

import aiohttp
import anyio
import pytest

from hermes_rl.testing.model_server import (
    ModelServer,
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
    slow,
)


async def post(server: ModelServer, body: object = None) -> tuple[int, object, dict[str, str]]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{server.base_url}/chat/completions", json=body or {"messages": []}
        ) as response,
    ):
        is_json = response.content_type == "application/json"
        decoded = await response.json() if is_json else await response.text()
        return response.status, decoded, dict(response.headers)


async def test_answers_come_in_turn_and_the_last_stays() -> None:
    async with serve_model(answer_in_turn([say("a"), say("b")])) as server:
        said = [(await post(server))[1] for _ in range(3)]
    contents = [body["choices"][0]["message"]["content"] for body in said]  # type: ignore[index]
    assert contents == ["a", "b", "b"]


async def test_requests_are_recorded() -> None:
    async with serve_model(always(say("a"))) as server:
        await post(server, {"messages": [{"role": "user", "content": "x"}], "top_k": 3})
        seen = server.requests[0]
    assert seen.messages == [{"role": "user", "content": "x"}]
    assert seen.body["top_k"] == 3
    assert seen.headers["content-type"] == "application/json"


async def test_a_tool_call_has_the_form_of_openai() -> None:
    async with serve_model(always(call_tool("f", {"a": 1}))) as server:
        _, body, _ = await post(server)
    choice = body["choices"][0]  # type: ignore[index]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]
    assert body["usage"]["prompt_tokens"] == 10  # type: ignore[index]


async def test_usage_can_be_left_out() -> None:
    async with serve_model(always(completion({"content": "x"}, usage={}))) as server:
        _, body, _ = await post(server)
    assert "usage" not in body  # type: ignore[operator]


async def test_a_refusal_has_status_header_and_error() -> None:
    async with serve_model(always(refuse(429, "slow down", retry_after=2, code="x"))) as server:
        status, body, headers = await post(server)
    assert (status, headers["Retry-After"]) == (429, "2")
    assert body == {"error": {"message": "slow down", "code": "x"}}


async def test_any_bytes_can_be_sent() -> None:
    page = send(b"<html>", status=418, content_type="text/html")
    async with serve_model(always(page)) as server:
        assert (await post(server))[:2] == (418, "<html>")


async def test_a_reset_is_seen_by_the_client_as_one() -> None:
    async with serve_model(always(reset())) as server:
        with pytest.raises(aiohttp.ClientOSError) as caught:
            await post(server)
    assert isinstance(caught.value.__cause__, ConnectionResetError) or caught.value.errno


async def test_an_answer_can_end_in_the_middle() -> None:
    async with serve_model(always(cut_off())) as server:
        with pytest.raises(aiohttp.ClientError):
            await post(server)


async def test_a_hanging_answer_does_not_keep_the_server_open() -> None:
    with anyio.fail_after(60):
        async with serve_model(always(hang())) as server:
            with anyio.move_on_after(0.1) as scope:
                await post(server)
            assert scope.cancelled_caught


async def test_a_slow_answer_comes_late() -> None:
    async with serve_model(always(slow(say("late"), 0.2))) as server:
        with anyio.move_on_after(0.05) as scope:
            await post(server)
        assert scope.cancelled_caught
        assert (await post(server))[0] == 200


async def test_models_are_listed() -> None:
    async with (
        serve_model(always(say("x")), models=[{"id": "m"}]) as server,
        aiohttp.ClientSession() as session,
        session.get(f"{server.base_url}/models") as response,
    ):
        assert (await response.json())["data"] == [{"id": "m"}]
