"""Reading completions as servers really send them."""

import threading
from typing import Any

import pytest

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ModelProtocolError
from hermes_rl.model.reply import (
    LONG_TEXT_CHARS,
    CallIds,
    Spoken,
    first_choice,
    read_completion,
    read_message,
    read_usage,
    split_think,
)
from hermes_rl.parsers import get_parser
from hermes_rl.types import JSONObject, Usage


def read(message: JSONObject, finish_reason: Any = "stop") -> Spoken:
    return read_message({"message": message, "finish_reason": finish_reason}, CallIds())


def call(name: Any = "f", arguments: Any = "{}", **fields: Any) -> JSONObject:
    return {"id": "a", "function": {"name": name, "arguments": arguments}, **fields}


@pytest.mark.parametrize(
    "data", [None, [], {}, {"choices": {}}, {"choices": [None]}, {"choices": [{"message": "x"}]}]
)
def test_an_answer_without_a_message_is_a_protocol_error(data: Any) -> None:
    with pytest.raises(ModelProtocolError, match="the server answered"):
        first_choice(data, "the server")


@pytest.mark.parametrize(("name", "value"), [("content", 17), ("tool_calls", "yes")])
def test_a_message_of_another_shape_is_the_servers_fault(name: str, value: object) -> None:
    data = {"choices": [{"message": {"role": "assistant", name: value}}]}
    with pytest.raises(ModelProtocolError, match=f"whose {name} is a {type(value).__name__}"):
        first_choice(data, "the server")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ({"a": 1}, '{"a":1}'),
        (None, "{}"),
        ("", "{}"),
        ("  ", "{}"),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ([1], "[1]"),
    ],
)
def test_arguments_become_text_and_malformed_ones_stay(arguments: Any, text: str) -> None:
    assert read({"tool_calls": [call(arguments=arguments)]}).tool_calls[0].arguments == text


def test_ids_are_unique_in_the_whole_conversation() -> None:
    ids = CallIds()
    turn = {"tool_calls": [call(id="a"), call(id="a"), call(id=None), call(id=""), call(id=7)]}
    choice = {"message": turn, "finish_reason": "tool_calls"}
    found = [c.id for _ in range(2) for c in read_message(choice, ids).tool_calls]
    assert found[0] == "a"
    assert len(set(found)) == 10
    made = found[1:]
    assert all(len(call_id) == 9 and call_id.isalnum() for call_id in made)


@pytest.mark.parametrize(
    "entry",
    [
        call(name=None),
        call(name=""),
        call(name=5),
        {"id": "a"},
        {"id": "a", "function": None},
        "terminal",
        None,
        5,
    ],
)
def test_a_call_without_a_name_is_an_invalid_call(entry: Any) -> None:
    spoken = read({"content": "x", "tool_calls": [entry, call()]})
    assert [c.name for c in spoken.tool_calls] == ["f"]
    assert len(spoken.invalid_calls) == 1
    assert spoken.invalid_calls[0].name is None
    assert "no function name" in spoken.invalid_calls[0].reason


def test_names_lose_surrounding_space() -> None:
    assert read({"tool_calls": [call(name=" terminal\n")]}).tool_calls[0].name == "terminal"


def test_the_message_to_store_has_calls_reasoning_and_details() -> None:
    details = [{"type": "reasoning.text", "text": "because"}]
    message = read(
        {"content": "", "tool_calls": [call()], "reasoning_details": details}
    ).to_message()
    assert message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
        "reasoning_content": "because",
        "reasoning_details": details,
    }


def test_an_empty_answer_is_an_empty_message() -> None:
    for message in ({}, {"content": None}, {"content": ""}):
        assert read(message).to_message() == {"role": "assistant", "content": ""}


def test_a_refusal_is_what_was_said() -> None:
    assert read({"content": None, "refusal": "I cannot."}).content == "I cannot."


@pytest.mark.parametrize(
    ("message", "reasoning", "content"),
    [
        ({"content": "4", "reasoning_content": "r"}, "r", "4"),
        ({"content": "4", "reasoning": "r"}, "r", "4"),
        ({"content": "4", "reasoning": "r", "reasoning_content": ""}, "r", "4"),
        ({"content": "4", "reasoning": None, "reasoning_content": None}, None, "4"),
        (
            {
                "content": "4",
                "reasoning_details": [
                    {"type": "reasoning.summary", "summary": "s"},
                    {"type": "reasoning.encrypted", "data": "x"},
                    {"type": "reasoning.text", "text": "t"},
                ],
            },
            "s\nt",
            "4",
        ),
        ({"content": "<think>r</think>4"}, "r", "4"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "r"}]},
                    {"type": "text", "text": "4"},
                ]
            },
            "r",
            "4",
        ),
        ({"content": "<think>x</think>4", "reasoning_content": "r"}, "r", "<think>x</think>4"),
        ({"content": "4", "reasoning_details": "odd"}, None, "4"),
    ],
)
def test_reasoning_is_found_where_servers_put_it(
    message: JSONObject, reasoning: str | None, content: str
) -> None:
    spoken = read(message)
    assert (spoken.reasoning, spoken.content) == (reasoning, content)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>r</think>answer", ("r", "answer")),
        ("\n<think>\nr\n</think>\n\nanswer\n", ("r", "answer")),
        ("<think>\n\n</think>\n\nanswer", (None, "answer")),
        ("r</think>answer", ("r", "answer")),
        ("<think>never ends", ("never ends", None)),
        ("plain", (None, "plain")),
        (" indented\n", (None, " indented\n")),
        ("use <think> tags", (None, "use <think> tags")),
        ("say <think>x</think> so", (None, "say <think>x</think> so")),
        ("", (None, "")),
    ],
)
def test_think_blocks_are_split_off_at_the_start_only(
    text: str, expected: tuple[str | None, str | None]
) -> None:
    assert split_think(text) == expected


@pytest.mark.parametrize(
    ("sent", "has_calls", "normalised"),
    [
        ("stop", False, "stop"),
        ("stop", True, "tool_calls"),
        ("tool_calls", False, "stop"),
        ("tool_calls", True, "tool_calls"),
        ("function_call", True, "tool_calls"),
        ("length", True, "length"),
        ("max_tokens", False, "length"),
        ("MAX_TOKENS", False, "length"),
        ("end_turn", False, "stop"),
        ("eos", False, "stop"),
        ("content_filter", False, "content_filter"),
        ("SAFETY", False, "content_filter"),
        (None, False, "stop"),
        (None, True, "tool_calls"),
        ("repetition", False, "repetition"),
    ],
)
def test_finish_reasons_are_normalised(sent: Any, has_calls: bool, normalised: str) -> None:
    message = {"content": "x", "tool_calls": [call()] if has_calls else None}
    assert read(message, sent).finish_reason == normalised


@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (None, Usage()),
        ("odd", Usage()),
        ({}, Usage()),
        ({"prompt_tokens": None, "completion_tokens": -1}, Usage()),
        (
            {"prompt_tokens": 9, "completion_tokens": 4, "prompt_cache_hit_tokens": 3},
            Usage(9, 4, cached_tokens=3),
        ),
        (
            {"prompt_tokens": 9, "prompt_tokens_details": None, "cost": None},
            Usage(9),
        ),
        ({"prompt_tokens": 9, "cost": True}, Usage(9)),
        ({"prompt_tokens": 9, "cost": 0}, Usage(9)),
    ],
)
def test_odd_usage_counts_as_little_as_it_says(usage: Any, counted: Usage) -> None:
    assert read_usage({"usage": usage}, ServerConfig()) == counted


def test_a_reported_cost_of_nothing_is_not_replaced_by_the_configured_price() -> None:
    config = ServerConfig(prompt_cost_usd_per_mtok=5.0)
    assert read_usage({"usage": {"prompt_tokens": 9, "cost": 0}}, config).cost_usd == 0


CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def parsed(text: str, **fields: Any) -> Spoken:
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    return read_message(choice, CallIds(), parser=get_parser("hermes"), **fields)


def test_text_behind_calls_is_not_put_in_front_of_them() -> None:
    spoken = parsed(f"Before.\n{CALL}\nBehind.")
    assert spoken.content == "Before."
    assert spoken.raw_text == f"Before.\n{CALL}\nBehind."


def test_made_ids_depend_on_the_rollout_and_turn_and_on_nothing_else() -> None:
    seeds = ("1:1", "1:1", "1:2", "2:1")
    ids = [parsed(CALL, id_seed=seed).tool_calls[0].id for seed in seeds]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


def test_a_block_that_the_prompt_opened_is_reasoning() -> None:
    assert parsed("still thinking", reasoning_open=True).reasoning == "still thinking"
    assert parsed("an answer", reasoning_open=False).content == "an answer"


async def test_long_texts_are_parsed_off_the_loop_to_the_same_result() -> None:
    threads: set[int] = set()

    class Noting:
        name = "noting"

        def parse(self, *arguments: Any, **options: Any) -> Any:
            threads.add(threading.get_ident())
            return get_parser("hermes").parse(*arguments, **options)

    for length, in_thread in ((10, False), (LONG_TEXT_CHARS, True)):
        threads.clear()
        choice = {"message": {"content": "x" * length + CALL}, "finish_reason": "stop"}
        spoken = await read_completion(choice, CallIds(), parser=Noting())
        assert [call.name for call in spoken.tool_calls] == ["f"]
        assert spoken.content == "x" * length
        assert (threads != {threading.get_ident()}) is in_thread
