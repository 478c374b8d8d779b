"""The pieces that keep scanners linear and exact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.parsers.format import END_TOKENS, strip_end_tokens
from hermes_rl.parsers.json_value import extent
from hermes_rl.parsers.scan import Finder, Scan, is_cut_tag


@given(st.text("ab<>", max_size=60), st.lists(st.integers(0, 60), max_size=20))
def test_finder_agrees_with_find_in_any_order_of_questions(text: str, starts: list[int]) -> None:
    finder = Finder(text)
    for start in starts:
        for marker in ("<", "ab", "<a>", "zz"):
            expected = text.find(marker, start)
            assert finder.next(marker, start) == (expected if expected >= 0 else len(text))


def test_of_two_markers_at_one_place_the_longer_is_found() -> None:
    assert Finder("x<tool_calls>").first(("<tool", "<tool_calls>"), 0) == (1, "<tool_calls>")
    assert Finder("x").first(("<a>", "<b>"), 0) == (1, "")


def test_a_cut_tag_is_a_tag_that_the_text_ends_in() -> None:
    assert is_cut_tag("x</tool", 1, "</tool_call>")
    assert is_cut_tag("x", 1, "</tool_call>")
    assert not is_cut_tag("x</tool_call>", 1, "</tool_call>")
    assert not is_cut_tag("x</tool y", 1, "</tool_call>")


def test_end_tokens_are_stripped_in_any_number_and_only_at_the_end() -> None:
    assert strip_end_tokens("a <|im_end|>\n</s> \n") == "a "
    assert strip_end_tokens("a</s>b \n") == "a</s>b \n"
    assert strip_end_tokens("".join(END_TOKENS)) == ""


def test_an_extent_ends_with_its_bracket_or_where_json_ends() -> None:
    assert (extent('{"a": "}"} x', 0).end, extent('{"a": "}"} x', 0).is_closed) == (10, True)
    assert (extent("{a", 0).end, extent("{a", 0).is_closed) == (2, False)
    assert extent('{"a": x}', 0).end == 6
    assert extent('{"a": "x', 0).end == 8
    assert extent("[[{}]]", 0).depth == 3


def test_prose_is_what_is_in_front_of_and_between_and_behind_the_calls() -> None:
    scan = Scan("ab<c>de<c>fg<m>")
    scan.add_call(2, 5, name="f", arguments="{}")
    scan.reject(7, 10, code="json", reason="no")
    scan.add_markup(12, 15)
    assert scan.prose() == ("ab", "de\nfg")
