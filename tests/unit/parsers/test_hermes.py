"""What the Hermes format accepts and how it fails; the tables are in tests/data/parser_cases."""

from __future__ import annotations

import orjson
import pytest

from hermes_rl.errors import UnknownName
from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.parsers.hermes import HermesParser

CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "/tmp"}}\n</tool_call>'


def test_result_unpacks_as_content_and_calls() -> None:
    content, calls = HermesParser().parse("Looking.\n" + CALL)
    assert content == "Looking."
    assert [(call.name, orjson.loads(call.arguments)) for call in calls] == [
        ("ls", {"path": "/tmp"})
    ]
    assert calls[0].function.name == "ls"


def test_a_cut_call_is_invalid_and_the_text_is_kept() -> None:
    text = CALL[:40]
    result = HermesParser().parse(text)
    assert (result.content, result.tool_calls) == (text, None)
    assert [(each.name, each.code, each.kind) for each in result.invalid] == [
        ("ls", "truncated", "structure")
    ]
    assert result.invalid[0].raw == text


def test_ids_depend_on_seed_text_and_index_only() -> None:
    parser = HermesParser()
    first = parser.parse(CALL * 2, id_seed="a/1").tool_calls
    again = parser.parse(CALL * 2, id_seed="a/1").tool_calls
    other = parser.parse(CALL * 2, id_seed="a/2").tool_calls
    assert first == again
    assert first is not None
    assert other is not None
    assert len({call.id for call in first + other}) == 4


def test_registry_returns_one_shared_instance_and_names_the_nearest() -> None:
    assert get_parser("hermes") is get_parser("hermes")
    assert "hermes" in list_parsers()
    with pytest.raises(UnknownName, match=r"'hermes'.*Known: .*hermes"):
        get_parser("hermse")


def test_an_end_tag_in_a_string_of_a_malformed_call_does_not_end_it() -> None:
    bad = (
        '<tool_call>{"name": "w", "arguments": {"text": "the </tool_call> tag", oops}}</tool_call>'
    )
    result = HermesParser().parse(f"A.{bad}B.{CALL}C.")
    assert [entry.raw for entry in result.invalid] == [bad]
    assert (result.content, result.trailing) == ("A.B.", "C.")


def test_a_malformed_call_ends_at_its_own_end_tag_though_a_quote_never_closed() -> None:
    bad = '<tool_call>{"name": "w", "arguments": {"text": "open}}</tool_call>'
    result = HermesParser().parse(f"{bad}\nB.\n{CALL}")
    assert [entry.raw for entry in result.invalid] == [bad]
    assert (result.content, len(result.tool_calls or ())) == ("B.", 1)


def test_repeated_markers_of_mistral_count_once() -> None:
    result = get_parser("mistral").parse("[TOOL_CALLS] [TOOL_CALLS]ls[ARGS]{}[TOOL_CALLS]")
    assert result.markers == 2
