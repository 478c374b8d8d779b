"""What a session sends and what it makes of the answers, over real HTTP on loopback."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError, ModelRejected
from hermes_rl.model import ModelSession, Sampling
from hermes_rl.model.http import Endpoint
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.openai import OpenAIModel, open_openai
from hermes_rl.model.retry import Retrier, RetryPolicy
from hermes_rl.model.wire import ReasoningInHistory
from hermes_rl.parsers import get_parser
from hermes_rl.testing.model_server import (
    ModelServer,
    Script,
    SeenRequest,
    always,
    answer_in_turn,
    completion,
    refuse,
    say,
    serve_model,
)
from hermes_rl.types import JSONObject, Message, StopReason, ToolCallParser

TERMINAL: JSONObject = {
    "type": "function",
    "function": {
        "name": "terminal",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
DETAILS: JSONObject = {"type": "reasoning.encrypted", "data": "c2VjcmV0"}
HELLO: list[Message] = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def opened(
    script: Script,
    *,
    tools: Sequence[JSONObject] = (),
    sampling: Sampling | None = None,
    seed: int | None = None,
    parser: ToolCallParser | None = None,
    reasoning: ReasoningInHistory = "auto",
    models: Sequence[JSONObject] = (),
    **config: Any,
) -> AsyncIterator[tuple[ModelSession, ModelServer]]:
    async with serve_model(script, models=models) as server:
        fields = {"base_url": server.base_url, "model_name": "m", **config}
        model_context = open_openai(
            ServerConfig(**fields),
            parser=parser,
            reasoning_in_history=reasoning,
            policy=RetryPolicy(first_delay_s=0.0, first_rate_limited_delay_s=0.0),
            environ={},
        )
        async with (
            model_context as model,
            model.session(tools=tools, sampling=sampling or Sampling(), seed=seed) as session,
        ):
            yield session, server


class TestRequest:
    async def test_holds_what_was_asked_for_and_nothing_else(self) -> None:
        sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens_per_turn=77)
        async with opened(always(say("hi")), tools=[TERMINAL], sampling=sampling, seed=3) as (
            session,
            server,
        ):
            await session.complete(HELLO)
        assert server.requests[0].body == {
            "messages": HELLO,
            "model": "m",
            "temperature": 0.5,
            "top_p": 0.9,
            "max_tokens": 77,
            "seed": 3,
            "tools": [TERMINAL],
        }
        headers = server.requests[0].headers
        assert headers["Content-Type"] == "application/json"
        assert "Authorization" not in headers

    async def test_leaves_out_what_is_not_set(self) -> None:
        async with opened(always(say("hi"))) as (session, server):
            await session.complete(HELLO)
        assert server.requests[0].body == {"messages": HELLO, "model": "m", "temperature": 1.0}

    async def test_merges_extra_body(self) -> None:
        extra = {"provider": {"order": ["x"]}, "top_k": 5, "reasoning": {"exclude": True}}
        async with opened(
            always(say("hi")), sampling=Sampling(extra_body=extra), max_reasoning_tokens=100
        ) as (session, server):
            await session.complete(HELLO)
        body = server.requests[0].body
        assert (body["provider"], body["top_k"]) == ({"order": ["x"]}, 5)
        assert body["reasoning"] == {"max_tokens": 100, "exclude": True}

    @pytest.mark.parametrize("field", ["messages", "stream", "n", "tools", "max_tokens"])
    async def test_refuses_extra_body_that_breaks_the_account(self, field: str) -> None:
        sampling = Sampling(extra_body={field: 1})
        with pytest.raises(ConfigError, match=f"extra_body must not set {field}"):
            async with opened(always(say("hi")), sampling=sampling):
                pass

    async def test_asks_for_reasoning_effort(self) -> None:
        async with opened(always(say("hi")), reasoning_effort="high") as (session, server):
            await session.complete(HELLO)
        assert server.requests[0].body["reasoning_effort"] == "high"

    async def test_a_long_history_arrives_whole(self) -> None:
        """Bodies above 512 KiB are written in pieces."""
        messages: list[Message] = [{"role": "user", "content": "ä" * 700_000} for _ in range(3)]
        async with opened(always(say("hi"))) as (session, server):
            await session.complete(messages)
        seen = server.requests[0]
        assert seen.messages == messages
        assert len(seen.raw) > 4_000_000
        assert int(seen.headers["Content-Length"]) == len(seen.raw)
        assert "Transfer-Encoding" not in seen.headers

    async def test_a_long_history_is_sent_whole_again_after_a_failure(self) -> None:
        messages: list[Message] = [{"role": "user", "content": "x" * 2_000_000}]
        async with opened(answer_in_turn([refuse(500), say("hi")])) as (session, server):
            await session.complete(messages)
        first, second = server.requests
        assert first.raw == second.raw

    async def test_a_message_that_is_no_json_names_itself(self) -> None:
        async with opened(always(say("hi"))) as (session, _):
            with pytest.raises(ModelRejected, match=r"Message 1 \(user\) cannot be sent as JSON"):
                await session.complete([*HELLO, {"role": "user", "content": object()}])


class TestDialect:
    def script(self, request: SeenRequest) -> Any:
        """Behave like a reasoning model at OpenAI, and take no seed either."""
        if "max_tokens" in request.body:
            return refuse(
                400,
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead.",
                param="max_tokens",
                code="unsupported_parameter",
            )
        if "seed" in request.body:
            return refuse(422, "Unknown parameter: 'seed'.", param="seed")
        return say("hi")

    async def test_switches_to_max_completion_tokens_and_drops_the_seed_once(self) -> None:
        sampling = Sampling(max_tokens_per_turn=50)
        async with opened(self.script, sampling=sampling, seed=1) as (session, server):
            first = await session.complete(HELLO)
            second = await session.complete(HELLO)
        assert (first.usage.requests, second.usage.requests) == (3, 1)
        body = server.requests[-1].body
        assert body["max_completion_tokens"] == 50
        assert not {"max_tokens", "seed"} & body.keys()

    def test_what_one_session_learnt_is_not_undone_by_a_later_refusal(self) -> None:
        config = ServerConfig(model_name="m")
        endpoint = Endpoint("http://s/v1", httpx.MockTransport(lambda _: httpx.Response(500)))
        model = OpenAIModel(endpoint, config, retrier=Retrier(AdaptiveLimiter(1)))
        at_first = model.dialect
        assert model.adapt("seed", at_first)
        # A request of another session, built before that, was refused for another field.
        assert model.adapt("max_tokens", at_first)
        assert not model.dialect.takes_seed

    async def test_gives_up_when_the_other_field_is_refused_too(self) -> None:
        answer = refuse(400, "Use 'max_completion_tokens' instead.", param="max_tokens")
        sampling = Sampling(max_tokens_per_turn=50)
        async with opened(always(answer), sampling=sampling) as (session, server):
            with pytest.raises(ModelRejected) as caught:
                await session.complete(HELLO)
        assert type(caught.value) is ModelRejected
        assert len(server.requests) == 2


class TestHistory:
    async def test_grows_and_counts_no_fork(self) -> None:
        async with opened(always(say("hi"))) as (session, server):
            messages = list(HELLO)
            for _ in range(3):
                answer = await session.complete(messages)
                assert answer.message is not None
                messages += [answer.message, {"role": "user", "content": "more"}]
            assert session.forks == 0  # type: ignore[attr-defined]
        assert [len(request.messages) for request in server.requests] == [1, 3, 5]

    async def test_a_changed_history_is_sent_as_it_is_and_counted(self) -> None:
        async with opened(always(say("hi"))) as (session, server):
            await session.complete([*HELLO, {"role": "user", "content": "a"}])
            await session.complete([*HELLO, {"role": "user", "content": "b"}])
            await session.complete(HELLO)
            assert session.forks == 2  # type: ignore[attr-defined]
        assert [m["content"] for m in server.requests[1].messages] == ["hello", "b"]
        assert server.requests[2].messages == HELLO


class TestTurn:
    async def test_counts_tokens_and_cost(self) -> None:
        usage = {
            "prompt_tokens": 1000,
            "completion_tokens": 100,
            "prompt_tokens_details": {"cached_tokens": 900},
            "completion_tokens_details": {"reasoning_tokens": 60},
            "cost": 0.0125,
        }
        async with opened(always(say("hi", usage=usage))) as (session, _):
            counted = (await session.complete(HELLO)).usage
        assert (counted.prompt_tokens, counted.completion_tokens) == (1000, 100)
        assert (counted.cached_tokens, counted.reasoning_tokens) == (900, 60)
        assert counted.cost_usd == 0.0125

    async def test_costs_the_configured_price_where_the_server_says_none(self) -> None:
        usage = {"prompt_tokens": 1_000_000, "completion_tokens": 500_000}
        prices = {"prompt_cost_usd_per_mtok": 2.0, "completion_cost_usd_per_mtok": 10.0}
        async with opened(always(say("hi", usage=usage)), **prices) as (session, _):
            assert (await session.complete(HELLO)).usage.cost_usd == pytest.approx(7.0)

    async def test_a_parser_is_applied_only_where_the_server_reports_no_call(self) -> None:
        text = '<tool_call>{"name": "terminal", "arguments": {"command": "ls"}}</tool_call>'
        call = {"id": "1", "function": {"name": "terminal", "arguments": '{"command":"w"}'}}
        both = completion({"content": "As said: " + text, "tool_calls": [call]})
        script = answer_in_turn([say("I look. " + text), both])
        async with opened(script, tools=[TERMINAL], parser=get_parser("hermes")) as (session, _):
            parsed = await session.complete(HELLO)
            reported = await session.complete(HELLO)
        assert [call.arguments for call in parsed.tool_calls] == ['{"command": "ls"}']
        assert parsed.raw_text == "I look. " + text
        assert parsed.message is not None
        assert parsed.message["content"] == "I look."
        assert parsed.finish_reason == "tool_calls"
        assert [call.arguments for call in reported.tool_calls] == ['{"command":"w"}']
        assert reported.raw_text is None
        assert reported.message is not None
        assert reported.message["content"] == "As said: " + text

    async def test_without_a_parser_text_stays_text(self) -> None:
        text = '<tool_call>{"name": "terminal", "arguments": {}}</tool_call>'
        async with opened(always(say(text)), tools=[TERMINAL]) as (session, _):
            answer = await session.complete(HELLO)
        assert (answer.tool_calls, answer.finish_reason) == ((), "stop")
        assert answer.message == {"role": "assistant", "content": text}

    async def test_a_malformed_call_in_text_is_data(self) -> None:
        text = '<tool_call>{"name": "terminal", "arguments": {"command": </tool_call>'
        async with opened(always(say(text)), parser=get_parser("hermes")) as (session, _):
            answer = await session.complete(HELLO)
        assert answer.tool_calls == ()
        assert len(answer.invalid_calls) == 1
        assert answer.message is not None
        assert answer.message["content"] == text


class TestReasoning:
    async def turn_after(
        self, message: JSONObject, policy: ReasoningInHistory
    ) -> tuple[Message, Message]:
        """Return an answer's stored message and how it is sent back on the next turn."""
        script = answer_in_turn([completion(message), say("done")])
        async with opened(script, reasoning=policy) as (session, server):
            first = await session.complete(HELLO)
            assert first.message is not None
            # The agent may copy the message.
            await session.complete([*HELLO, {**first.message}])
        return first.message, server.requests[1].messages[1]

    @pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
    async def test_text_is_stored_and_sent_back_in_its_field_only_if_kept(self, field: str) -> None:
        answer = {"content": "4", field: "2 + 2"}
        stored, sent = await self.turn_after(answer, "auto")
        assert stored["reasoning_content"] == "2 + 2"
        assert sent == {"role": "assistant", "content": "4"}
        _, sent = await self.turn_after(answer, "keep")
        assert sent == {"role": "assistant", "content": "4", field: "2 + 2"}

    async def test_think_tags_are_taken_out_and_put_back_if_kept(self) -> None:
        answer = {"content": "<think>\n2 + 2\n</think>\n\n4"}
        stored, sent = await self.turn_after(answer, "drop")
        assert stored == {"role": "assistant", "content": "4", "reasoning_content": "2 + 2"}
        assert sent == {"role": "assistant", "content": "4"}
        _, sent = await self.turn_after(answer, "keep")
        assert sent == {"role": "assistant", "content": "<think>\n2 + 2\n</think>\n\n4"}

    async def test_details_go_back_verbatim_to_the_server_they_came_from(self) -> None:
        answer = {"content": "4", "reasoning_details": [DETAILS]}
        stored, sent = await self.turn_after(answer, "auto")
        assert stored["reasoning_details"] == [DETAILS]
        assert sent["reasoning_details"] == [DETAILS]
        _, sent = await self.turn_after(answer, "drop")
        assert "reasoning_details" not in sent

    async def test_details_of_another_conversation_are_not_sent(self) -> None:
        foreign = {"role": "assistant", "content": "x", "reasoning_details": [DETAILS]}
        async with opened(always(say("hi"))) as (session, server):
            await session.complete([*HELLO, foreign])
        assert server.requests[0].messages[1] == {"role": "assistant", "content": "x"}


class TestBudget:
    async def test_each_call_gets_what_is_left_of_the_sequence(self) -> None:
        usage = {"prompt_tokens": 400, "completion_tokens": 50}
        sampling = Sampling(max_token_length=2000)
        async with opened(always(say("x" * 200, usage=usage)), sampling=sampling) as (
            session,
            server,
        ):
            answer = await session.complete(HELLO)
            assert answer.message is not None
            await session.complete([*HELLO, answer.message])
        first, second = (request.body["max_tokens"] for request in server.requests)
        assert 1900 < first < 2000
        assert 1300 < second <= 2000 - 450

    async def test_an_exhausted_sequence_ends_without_a_request(self) -> None:
        usage = {"prompt_tokens": 900, "completion_tokens": 95}
        sampling = Sampling(max_token_length=1000)
        async with opened(always(say("x", usage=usage)), sampling=sampling) as (session, server):
            answer = await session.complete(HELLO)
            assert answer.message is not None
            stopped = await session.complete([*HELLO, answer.message])
        assert (stopped.message, stopped.stop) == (None, StopReason.TOKEN_LIMIT)
        assert stopped.usage.requests == 0
        assert len(server.requests) == 1

    async def test_a_turn_cut_by_the_sequence_budget_says_so(self) -> None:
        def fill(request: SeenRequest) -> Any:
            usage = {"prompt_tokens": 20, "completion_tokens": request.body["max_tokens"]}
            return say("and so on", finish_reason="length", usage=usage)

        async with opened(fill, sampling=Sampling(max_token_length=500)) as (session, _):
            cut = await session.complete(HELLO)
        assert cut.stop is StopReason.TOKEN_LIMIT
        assert cut.message == {"role": "assistant", "content": "and so on"}
        assert cut.finish_reason == "length"

    async def test_a_turn_cut_by_its_own_cap_is_no_stop(self) -> None:
        usage = {"prompt_tokens": 20, "completion_tokens": 30}
        sampling = Sampling(max_tokens_per_turn=30, max_token_length=500)
        answer = say("x", finish_reason="length", usage=usage)
        async with opened(always(answer), sampling=sampling) as (session, server):
            cut = await session.complete(HELLO)
        assert (cut.stop, cut.finish_reason) == (None, "length")
        assert server.requests[0].body["max_tokens"] == 30

    async def test_a_turn_cut_by_the_server_before_our_bound_is_no_stop(self) -> None:
        usage = {"prompt_tokens": 20, "completion_tokens": 30}
        answer = say("x", finish_reason="length", usage=usage)
        async with opened(always(answer), sampling=Sampling(max_token_length=500)) as (session, _):
            assert (await session.complete(HELLO)).stop is None

    async def test_a_turn_cut_by_the_context_says_so(self) -> None:
        usage = {"prompt_tokens": 900, "completion_tokens": 120}
        answer = say("x", finish_reason="length", usage=usage)
        async with opened(always(answer), context_tokens=1024) as (session, _):
            assert (await session.complete(HELLO)).stop is StopReason.CONTEXT_LENGTH

    async def test_max_tokens_that_exceed_the_context_are_lowered_and_asked_again(self) -> None:
        def vllm(request: SeenRequest) -> Any:
            wanted = request.body["max_tokens"]
            if wanted + 200 <= 4096:
                return say("hi", usage={"prompt_tokens": 200, "completion_tokens": 2})
            return refuse(
                400,
                f"'max_tokens' or 'max_completion_tokens' is too large: {wanted}. This model's "
                "maximum context length is 4096 tokens and your request has 200 input tokens.",
            )

        sampling = Sampling(max_token_length=10_000)
        async with opened(vllm, sampling=sampling) as (session, server):
            answer = await session.complete(HELLO)
            assert answer.message is not None
            assert answer.usage.requests == 2
            await session.complete([*HELLO, answer.message])
        # The context's size was learnt: the second call fits at once.
        assert len(server.requests) == 3
        assert 3000 < server.requests[1].body["max_tokens"] <= 4096 - 200

    async def test_max_tokens_are_lowered_once_only(self) -> None:
        def ever_less(request: SeenRequest) -> Any:
            context = 8000 - 1000 * request.number
            return refuse(400, f"maximum context length is {context} tokens", code="x")

        async with opened(ever_less, sampling=Sampling(max_token_length=9000)) as (session, server):
            stopped = await session.complete(HELLO)
        assert stopped.stop is StopReason.CONTEXT_LENGTH
        assert len(server.requests) == 2

    async def test_a_prompt_that_fills_the_context_is_asked_once_only(self) -> None:
        refused = refuse(
            400,
            "This model's maximum context length is 4096 tokens. However, you requested 9000 "
            "tokens (5000 in the messages, 4000 in the completion).",
        )
        sampling = Sampling(max_token_length=10_000)
        async with opened(always(refused), sampling=sampling) as (session, server):
            stopped = await session.complete(HELLO)
        assert stopped.stop is StopReason.CONTEXT_LENGTH
        assert len(server.requests) == 1


class TestDiscovery:
    async def opened_model(self, models: Sequence[JSONObject], **config: Any) -> tuple[Any, Any]:
        async with serve_model(always(say("hi")), models=models) as server:
            fields = {"base_url": server.base_url, **config}
            async with open_openai(ServerConfig(**fields), environ={}) as model:
                return model.name, model.context_tokens

    @pytest.mark.parametrize(
        "entry",
        [{"max_model_len": 4096}, {"context_length": 4096}, {"meta": {"n_ctx": 4096}}],
    )
    async def test_the_context_is_what_the_server_says(self, entry: JSONObject) -> None:
        models = [{"id": "other", "max_model_len": 1}, {"id": "m", **entry}]
        assert await self.opened_model(models, model_name="m") == ("m", 4096)

    async def test_an_unnamed_model_is_the_only_one_there_is(self) -> None:
        models = [{"id": "qwen", "max_model_len": 4096}]
        assert await self.opened_model(models) == ("qwen", 4096)
        assert await self.opened_model([*models, {"id": "b"}]) == ("default", None)

    async def test_the_configured_context_wins(self) -> None:
        models = [{"id": "m", "max_model_len": 4096}]
        assert await self.opened_model(models, model_name="m", context_tokens=7) == ("m", 7)

    @pytest.mark.parametrize("models", [[], [None], ["m"], [{"id": "m", "max_model_len": "big"}]])
    async def test_an_odd_list_is_no_error(self, models: Any) -> None:
        assert await self.opened_model(models, model_name="m") == ("m", None)
