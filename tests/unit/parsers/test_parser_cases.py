"""Every parser on the cases in tests/data/parser_cases: texts with what must come out of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.types import ParseResult

CASES = Path(__file__).parents[2] / "data" / "parser_cases"
SHARED = Path(__file__).parents[4] / "shared" / "research"
TOOLS = json.loads((CASES / "tools.json").read_text(encoding="utf-8"))
FIRST_ELEVEN = [
    *("hermes", "mistral", "llama3_json", "qwen", "qwen3_coder", "deepseek_v3"),
    *("deepseek_v3_1", "kimi_k2", "longcat", "glm45", "glm47"),
]


def _cases() -> dict[str, list[dict[str, Any]]]:
    return {
        path.stem: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for path in sorted(CASES.glob("*.jsonl"))
    }


ALL = _cases()


def _parse(name: str, case: dict[str, Any], raw: str, finish_reason: str | None) -> ParseResult:
    parser = get_parser(name)
    tools = None if case.get("tools") == "none" else TOOLS
    opened = case.get("reasoning_open")
    return parser.parse(raw, tools, finish_reason, reasoning_open=opened)


def _calls(result: ParseResult) -> list[list[Any]]:
    return [[call.name, json.loads(call.arguments)] for call in result.tool_calls or ()]


PARAMS = [
    pytest.param(name, case, id=f"{name}-{case['case']}")
    for name, cases in ALL.items()
    for case in cases
]


def test_there_are_enough_cases_for_every_parser() -> None:
    counts = {name: len(ALL.get(name, ())) for name in list_parsers()}
    assert all(count >= (25 if name in FIRST_ELEVEN else 8) for name, count in counts.items())
    assert set(FIRST_ELEVEN) <= set(counts)


@pytest.mark.parametrize(("name", "case"), PARAMS)
def test_case(name: str, case: dict[str, Any]) -> None:
    result = _parse(name, case, case["raw"], case.get("finish_reason"))
    # compared as text: true is not 1, and 2 is not 2.0
    assert json.dumps(_calls(result)) == json.dumps([call[:2] for call in case["calls"]])
    assert result.content == case["content"]
    assert result.reasoning == case.get("reasoning")
    assert result.trailing == case.get("trailing", "")
    assert [[each.code, each.name] for each in result.invalid] == case.get("invalid", [])
    for call, expected in zip(result.tool_calls or (), case["calls"], strict=True):
        assert expected[2:] in ([], [call.id])


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_text_cut_anywhere_yields_only_whole_calls(name: str) -> None:
    for case in ALL[name]:
        raw = case["raw"]
        if len(raw) > 400 or case.get("ambiguous_cut"):
            continue
        whole = _calls(_parse(name, case, raw, None))
        for length in range(len(raw)):
            result = _parse(name, case, raw[:length], "length")
            calls = _calls(result)
            # reasoning may still be open in the cut text: what it drafts may then be a call
            if result.reasoning is None and case.get("reasoning") is None:
                assert calls == whole[: len(calls)], (case["case"], raw[:length])


def _corpus() -> Iterator[Any]:
    for path in sorted(SHARED.glob("parser_corpus*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            if case["parser"] in list_parsers():
                yield case


def _is_same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; 2 is 2.0 here, true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)


def _corpus_faults(case: dict[str, Any]) -> list[str]:
    parser = get_parser(case["parser"])
    result = parser.parse(case["raw"], case["tools"], case.get("finish_reason"))
    expected = [[call["name"], call["arguments"]] for call in case["tool_calls"]]
    faults = [] if _is_same(_calls(result), expected) else ["calls"]
    for call, wanted in zip(result.tool_calls or (), case["tool_calls"], strict=False):
        faults += ["id"] if wanted.get("id", call.id) != call.id else []
    for field in ("content", "reasoning", "trailing"):
        found, wanted_text = getattr(result, field) or "", case.get(field) or ""
        faults += [field] if found.strip() != wanted_text.strip() else []
    names = [entry.name for entry in result.invalid]
    return faults + (["invalid"] if names != _invalid_names(case) else [])


def _invalid_names(case: dict[str, Any]) -> list[str | None]:
    return [entry.get("name") for entry in case.get("invalid", ())]


def test_reference_corpus() -> None:
    cases = list(_corpus())
    if not cases:
        pytest.skip("the reference corpus is not on this machine")
    faults = {case["case"]: found for case in cases if (found := _corpus_faults(case))}
    assert faults == {}
