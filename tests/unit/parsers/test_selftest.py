"""The start-up check that a chat template writes calls as the parser reads them."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.parsers.format import Format
from hermes_rl.parsers.selftest import template_fault, warn_if_template_does_not_fit
from hermes_rl.types import JSONObject, Message, ToolCall


def _template_of(name: str, end: str = "<|im_end|>\n") -> Any:
    """Return a chat template that writes calls as the family ``name`` does."""
    parser = get_parser(name)
    assert isinstance(parser, Format)

    def render(messages: Sequence[Message], tools: Sequence[JSONObject]) -> str:
        parts = [f"<|im_start|>system\nTools: {json.dumps(list(tools))}{end}"]
        for message in messages:
            calls = [
                ToolCall(call["id"], **call["function"]) for call in message.get("tool_calls", ())
            ]
            body = parser.render(calls, message["content"] or "")
            parts.append(f"<|im_start|>{message['role']}\n{body}{end}")
        return "".join(parts)

    return render


@pytest.mark.parametrize("name", [n for n in list_parsers() if n != "gpt_oss"])
def test_a_template_fits_the_parser_of_its_family(name: str) -> None:
    assert template_fault(_template_of(name), get_parser(name)) is None


def test_a_template_of_another_family_is_told_with_the_parsers_that_read_it() -> None:
    fault = template_fault(_template_of("qwen3_coder"), get_parser("hermes"))
    assert fault is not None
    assert "'hermes' does not read" in fault
    assert "<function=probe_tool>" in fault
    assert "qwen3_coder" in fault.partition("Parsers that read it:")[2]


def test_v3_1_calls_under_the_v3_parser_are_noticed() -> None:
    # vllm-project/vllm issue 23454: the same tokens, and nothing is ever found
    assert template_fault(_template_of("deepseek_v3_1"), get_parser("deepseek_v3")) is not None


def test_arguments_that_a_template_encodes_twice_are_noticed() -> None:
    def render(messages: Sequence[Message], tools: Sequence[JSONObject]) -> str:
        calls = [call["function"] for m in messages for call in m.get("tool_calls", ())]
        texts = [m["content"] for m in messages if m["content"]]
        return "".join(texts) + "".join(
            f"<tool_call>f{call['name']}:{json.dumps(call['arguments'])}</tool_call>"
            for call in calls
        )

    fault = template_fault(render, get_parser("hermes"))
    assert fault is not None
    assert "No parser reads it" in fault


def test_a_template_without_tool_calls_is_told() -> None:
    def render(messages: Sequence[Message], tools: Sequence[JSONObject]) -> str:
        return "".join(f"{m['role']}: {m['content'] or ''}\n" for m in messages)

    assert "writes nothing" in str(template_fault(render, get_parser("hermes")))


def test_a_template_that_raises_is_told() -> None:
    def render(messages: Sequence[Message], tools: Sequence[JSONObject]) -> str:
        raise KeyError("bos_token")

    fault = template_fault(render, get_parser("hermes"))
    assert fault == "the chat template cannot render a tool call: KeyError: 'bos_token'"


def test_the_warning_is_logged_once_and_only_if_needed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    assert warn_if_template_does_not_fit(_template_of("hermes"), get_parser("hermes"))
    assert not caplog.records
    assert not warn_if_template_does_not_fit(_template_of("hermes"), get_parser("mistral"))
    assert len(caplog.records) == 1
    assert "Tool calls will not work" in caplog.text
