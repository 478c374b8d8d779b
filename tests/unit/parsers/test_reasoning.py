"""The reasoning split by itself, as clients use it on text without a tool-call format."""

from __future__ import annotations

import pytest

from hermes_rl.parsers import get_parser
from hermes_rl.parsers.reasoning import THINK, ReasoningTags, split_reasoning

SQUARE = ReasoningTags("[THINK]", "[/THINK]")


@pytest.mark.parametrize(
    ("text", "before", "reasoning", "rest"),
    [
        ("plain", "", None, "plain"),
        ("<think>a</think>b", "", "a", "b"),
        ("\n <think>\na\n</think>\n\nb", "", "a", "\n\nb"),
        ("a</think>b", "", "a", "b"),
        ("<think>a", "", "a", ""),
        ("<think></think>b", "", None, "b"),
        ("Hm. <think>a</think>b", "Hm. ", "a", "b"),
        ("<think>a<think>b</think>c", "", "a<think>b", "c"),
        ("<think>a</think>b</think>c", "", "a", "b</think>c"),
        ("the <think> tag", "", None, "the <think> tag"),
        ("", "", None, ""),
    ],
)
def test_split(text: str, before: str, reasoning: str | None, rest: str) -> None:
    split = split_reasoning(text)
    assert (split.before, split.reasoning, split.rest) == (before, reasoning, rest)
    assert text[split.rest_start :] == rest


def test_a_prompt_that_opened_the_block_makes_everything_reasoning_until_it_closes() -> None:
    assert split_reasoning("a", reasoning_open=True).reasoning == "a"
    assert split_reasoning("a", reasoning_open=True).is_open
    split = split_reasoning("a <think> b</think>c", reasoning_open=True)
    assert (split.reasoning, split.rest) == ("a <think> b", "c")


def test_a_prompt_that_opened_nothing_leaves_a_lone_closing_tag_alone() -> None:
    assert split_reasoning("a</think>b", reasoning_open=False).rest == "a</think>b"
    assert split_reasoning("<think>a</think>b", reasoning_open=False).reasoning == "a"


def test_the_pair_whose_block_comes_first_counts() -> None:
    tags = (SQUARE, THINK)
    assert split_reasoning("[THINK]a</think>[/THINK]b", tags).reasoning == "a</think>"
    assert split_reasoning("<think>a[/THINK]</think>b", tags).reasoning == "a[/THINK]"
    assert split_reasoning("a</think>b[/THINK]c", tags).reasoning == "a"


def test_an_unfinished_draft_of_an_unquoted_format_does_not_swallow_the_real_call() -> None:
    text = (
        "<think>maybe <tool_call>f<arg_key>a</arg_key><arg_value>x ... no</think>"
        "<tool_call>g<arg_key>b</arg_key><arg_value>y</arg_value></tool_call>"
    )
    result = get_parser("glm47").parse(text)
    assert [(call.name, call.arguments) for call in result.tool_calls or ()] == [
        ("g", '{"b": "y"}')
    ]
    assert (result.reasoning or "").endswith("no")


def test_parallel_calls_that_end_the_block_are_all_calls() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    result = get_parser("hermes").parse(f"<think>so: {call}\n{call}</think>")
    assert len(result.tool_calls or ()) == 2
    assert result.reasoning == "so:"


def test_a_call_begun_in_reasoning_that_never_closes_is_told() -> None:
    result = get_parser("hermes").parse('<think>so: <tool_call>{"name": "f", "argum')
    assert (result.content, result.tool_calls) == (None, None)
    assert [(each.code, each.name) for each in result.invalid] == [("truncated", "f")]


def test_positions_of_invalid_calls_count_from_the_start_of_the_text() -> None:
    text = '<think>a</think>\n<tool_call>{"name": "f", "arguments": {x}}</tool_call>'
    (invalid,) = get_parser("hermes").parse(text).invalid
    assert text[invalid.position :].startswith(invalid.raw)
    assert "'x'" in invalid.reason
