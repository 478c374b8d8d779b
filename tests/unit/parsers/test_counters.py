"""Counts of a parsed turn."""

from __future__ import annotations

from hermes_rl.parsers import get_parser
from hermes_rl.parsers.counters import parse_counters

CALL = '<tool_call>{"name": "ls", "arguments": {}}</tool_call>'


def _count(text: str) -> dict[str, int]:
    return parse_counters(get_parser("hermes").parse(text))


def test_calls_and_invalid_calls_are_counted_by_reason() -> None:
    bad = '<tool_call>{"name": "ls", "arguments": {x}}</tool_call>'
    text = f"{CALL}{bad}{bad}{CALL}<tool_call>"
    assert _count(text) == {"tool_calls": 2, "invalid_json": 2, "invalid_truncated": 1}


def test_a_marker_that_led_to_nothing_is_counted() -> None:
    assert _count("<tool_call>ls</tool_call> and <tool_call>") == {"invalid_truncated": 1}
    assert _count("<tool_call>ls</tool_call> and <tool_call>pwd") == {"marker_without_call": 1}


def test_a_plain_answer_counts_nothing() -> None:
    assert _count("Done.") == {}
    assert _count("The <tool_call> tag." + CALL) == {"tool_calls": 1}
