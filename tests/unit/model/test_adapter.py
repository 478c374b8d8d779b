"""Objects with ``chat_completion(**kwargs)`` as chat models."""

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

from hermes_rl.agent import HermesAgentLoop
from hermes_rl.errors import (
    ModelError,
    ModelProtocolError,
    ModelRateLimited,
    ModelTransient,
    ModelUnauthorized,
)
from hermes_rl.model import ChatModel, Sampling
from hermes_rl.model.adapter import ChatCompletionModel
from hermes_rl.parsers import get_parser
from hermes_rl.types import Completion, JSONObject, Message, StopReason

HELLO: list[Message] = [{"role": "user", "content": "hello"}]
TOOL: JSONObject = {"type": "function", "function": {"name": "terminal", "parameters": {}}}


class Message_(BaseModel):
    """Typed like the ``openai`` package's, which holds classes where others put dictionaries."""

    role: str = "assistant"
    content: str | None = None
    tool_calls: list[BaseModel] | None = None


class Choice(BaseModel):
    message: Message_
    finish_reason: str = "stop"


class ChatCompletion(BaseModel):
    choices: list[Choice]


class Server:
    """Plays answers and records what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[dict[str, Any]] = []

    async def chat_completion(self, **kwargs: Any) -> Any:
        self.asked.append(kwargs)
        answer = self._answers[min(len(self.asked), len(self._answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def spoken(text: str, **usage: int) -> JSONObject:
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": usage}


async def ask(server: Server, sampling: Sampling | None = None, **options: Any) -> Completion:
    model = ChatCompletionModel(server, **options)
    async with model.session(tools=[TOOL], sampling=sampling or Sampling(), seed=4) as session:
        return await session.complete(HELLO)


async def test_a_dictionary_is_an_answer() -> None:
    server = Server(spoken("hi", prompt_tokens=7))
    answer = await ask(server)
    assert answer.message == {"role": "assistant", "content": "hi"}
    assert (answer.usage.prompt_tokens, answer.usage.requests) == (7, 1)
    assert server.asked == [
        {"messages": HELLO, "tools": [TOOL], "temperature": 1.0, "n": 1, "seed": 4}
    ]


@pytest.mark.filterwarnings("error")
async def test_a_pydantic_model_is_an_answer_even_with_plain_dictionaries_in_it() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "terminal", "arguments": "{}"}}
    message = Message_.model_construct(role="assistant", content=None, tool_calls=[call])
    answer = await ask(Server(ChatCompletion(choices=[Choice.model_construct(message=message)])))
    assert [c.name for c in answer.tool_calls] == ["terminal"]


async def test_limits_and_extra_fields_are_passed_on() -> None:
    server = Server(spoken("hi"))
    sampling = Sampling(
        temperature=0.0, top_p=0.5, max_tokens_per_turn=9, extra_body={"min_p": 0.1}
    )
    await ask(server, sampling)
    asked = server.asked[0]
    assert (asked["temperature"], asked["top_p"], asked["max_tokens"]) == (0.0, 0.5, 9)
    assert asked["extra_body"] == {"min_p": 0.1}


async def test_past_calls_with_invalid_arguments_are_replayed_as_an_empty_object() -> None:
    server = Server(spoken("hi"))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{oops"}}
    model = ChatCompletionModel(server)
    async with model.session(tools=(), sampling=Sampling()) as session:
        await session.complete([*HELLO, {"role": "assistant", "tool_calls": [call]}])
    replayed = server.asked[0]["messages"][1]["tool_calls"][0]["function"]["arguments"]
    assert replayed == "{}"
    assert call["function"]["arguments"] == "{oops"  # type: ignore[index]


async def test_a_parser_reads_calls_out_of_text() -> None:
    text = '<tool_call>{"name": "terminal", "arguments": {}}</tool_call>'
    answer = await ask(Server(spoken(text)), parser=get_parser("hermes"))
    assert [call.name for call in answer.tool_calls] == ["terminal"]


class StatusError(Exception):
    def __init__(self, status_code: int, body: Any = None) -> None:
        super().__init__("it said no")
        self.status_code = status_code
        self.body = body


class APIConnectionError(Exception):
    pass


class RetryError(Exception):
    """Shaped like tenacity's."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("RetryError[<Future>]")
        self.last_attempt = SimpleNamespace(exception=lambda: cause)


@pytest.mark.parametrize(
    ("raised", "expected", "text"),
    [
        (StatusError(401, {"message": "wrong key"}), ModelUnauthorized, "wrong key"),
        (StatusError(429), ModelRateLimited, "it said no"),
        (RetryError(StatusError(500)), ModelTransient, "it said no"),
        (APIConnectionError("refused"), ModelTransient, "refused"),
        (TimeoutError("slow"), ModelTransient, "slow"),
        (KeyError("bug"), ModelError, "KeyError: 'bug'"),
        (ModelRateLimited("as it is"), ModelRateLimited, "as it is"),
    ],
)
async def test_what_the_object_raises_becomes_a_model_error(
    raised: Exception, expected: type[ModelError], text: str
) -> None:
    server = Server(raised)
    with pytest.raises(expected, match=text) as caught:
        await ask(server)
    assert type(caught.value) is expected
    assert len(server.asked) == 1


async def test_an_overlong_prompt_is_a_limit() -> None:
    refused = StatusError(400, {"message": "too long", "code": "context_length_exceeded"})
    assert (await ask(Server(refused))).stop is StopReason.CONTEXT_LENGTH


@pytest.mark.parametrize("answer", [None, "text", object(), {"choices": []}])
async def test_an_answer_of_another_kind_is_a_protocol_error(answer: Any) -> None:
    with pytest.raises(ModelProtocolError, match=r"Server|completion"):
        await ask(Server(answer))


def test_the_name_is_the_configured_one() -> None:
    server = Server()
    model = ChatCompletionModel(server)
    assert isinstance(model, ChatModel)
    assert model.name == "Server"
    server.config = SimpleNamespace(model_name="qwen")  # type: ignore[attr-defined]
    assert ChatCompletionModel(server).name == "qwen"
    assert ChatCompletionModel(server, name="mine").name == "mine"


async def test_the_agent_loop_takes_such_an_object_directly() -> None:
    result = await HermesAgentLoop(Server(spoken("done")), [], []).run(list(HELLO))
    assert result.stop_reason is StopReason.FINISHED
    assert result.messages[-1] == {"role": "assistant", "content": "done"}
