"""What holds for every parser on any text: round trips, no exception, no text lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.parsers.format import Format
from hermes_rl.testing.parser_conformance import HostileTexts, check_parse
from hermes_rl.types import ToolCall

NAMES = list_parsers()
UNQUOTED = {
    *("qwen3_coder", "step3p5", "mimo", "seed_oss", "glm45", "glm47"),
    *("minimax_m2", "deepseek_v3_2", "deepseek_v4"),
}
"""Formats that write strings as they are: one that spells a tag of the call cannot come back."""
SETTINGS = settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

CHARACTERS = st.characters(exclude_categories=["Cs"])
TEXT = st.text(CHARACTERS, max_size=40) | st.sampled_from(
    ["", " x ", "\n", "a\r\n", "\\n", '"', "}", "]", "</tool_call>", "[ARGS]", "true", "0042"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
WORDS = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
CALLS = st.lists(
    st.tuples(WORDS, st.dictionaries(WORDS, VALUES, max_size=4)), min_size=1, max_size=3
)
TYPE_NAMES = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def _tools(calls: Iterable[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return schemas that say the types of the calls' arguments."""
    tools: dict[str, dict[str, Any]] = {}
    for name, arguments in calls:
        properties = tools.setdefault(name, {})
        properties |= {key: {"type": TYPE_NAMES[type(v)]} for key, v in arguments.items()}
    return [
        {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}
        for name, properties in tools.items()
    ]


def _are_types_unique(calls: list[tuple[str, dict[str, Any]]]) -> bool:
    seen: dict[tuple[str, str], type] = {}
    return all(
        seen.setdefault((name, key), type(value)) is type(value)
        for name, arguments in calls
        for key, value in arguments.items()
    )


def _may_spell_a_tag(value: Any) -> bool:
    return "<" in json.dumps(value)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_rendered_is_parsed_back(name: str) -> None:
    parser = get_parser(name)
    assert isinstance(parser, Format)

    @SETTINGS
    @given(CALLS, st.sampled_from(["", "Some words."]))
    def check(calls: list[tuple[str, dict[str, Any]]], content: str) -> None:
        if name in UNQUOTED:
            calls = [(n, {k: v for k, v in a.items() if not _may_spell_a_tag(v)}) for n, a in calls]
            calls = calls if _are_types_unique(calls) else calls[:1]
        written = [ToolCall("", n, json.dumps(a, ensure_ascii=False)) for n, a in calls]
        result = parser.parse(parser.render(written, content), _tools(calls))
        found = [(call.name, json.loads(call.arguments)) for call in result.tool_calls or ()]
        assert json.dumps(found) == json.dumps(calls)
        assert result.content == (content or None)
        assert (result.invalid, result.trailing) == ((), "")

    check()


@pytest.mark.parametrize("name", NAMES)
def test_any_text_is_parsed_without_an_exception(name: str) -> None:
    parser = get_parser(name)

    @SETTINGS
    @given(st.text(max_size=200), st.sampled_from([None, "stop", "length"]))
    def check(text: str, finish_reason: str | None) -> None:
        check_parse(parser, text, finish_reason)

    check()


TAG = re.compile(r"<[^<>]*>?|\[[A-Z_]*\]?|[;,\]`()]|\s|json|assistant|commentary|final|analysis")


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_lost(name: str) -> None:
    parser = get_parser(name)
    assert isinstance(parser, Format)
    texts = HostileTexts(parser, seed=7)
    for _ in range(400):
        text = texts.draw()
        scan = parser.scan(text, None, None)
        ends = [0, *(piece.end for piece in scan.pieces)]
        starts = [*(piece.start for piece in scan.pieces), len(text)]
        assert all(end <= start for end, start in zip(ends, starts, strict=True)), text
        prose = "".join(text[end:start] for end, start in zip(ends, starts, strict=True))
        assert "".join("".join(scan.prose()).split()) == "".join(prose.split()), text
        raws = "\n".join(entry.raw for entry in scan.invalid)
        for piece in scan.pieces:
            inside = text[piece.start : piece.end]
            if piece.kind == "invalid":
                assert inside in raws
            elif piece.kind == "markup" and name != "gpt_oss":  # there reasoning is one too
                assert TAG.sub("", inside) == "", inside


@pytest.mark.parametrize("name", NAMES)
def test_without_a_call_the_text_is_the_content(name: str) -> None:
    parser = get_parser(name)
    for text in ("plain", " two\nlines \n", "a < b > c {d} [e]", "```json\n{}\n```"):
        assert parser.parse(text).content == text
