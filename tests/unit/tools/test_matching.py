import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.tools.matching import find_lines, find_text
from hermes_rl.tools.replacement import replace_text

CODE = """\
class A:
    def f(self):
        x = 1
        return x

    def g(self):
        y = 2
        return y
"""


def found(text: str, wanted: str) -> tuple[str, list[str]]:
    result = find_text(text, wanted)
    assert result is not None
    return result.strategy, [text[start:end] for start, end in result.spans]


def test_exact_comes_first_and_finds_all() -> None:
    assert found("a b a b", "a b") == ("exact", ["a b", "a b"])


def test_wrong_indentation_with_the_right_shape_is_forgiven() -> None:
    wanted = "def f(self):\n    x = 1\n    return x"
    passage = "    def f(self):\n        x = 1\n        return x"
    assert found(CODE, wanted) == ("indentation_flexible", [passage])


def test_blanks_around_lines_are_forgiven() -> None:
    assert found("  a  \n b\nc", "a\nb") == ("line_trimmed", ["  a  \n b"])


def test_runs_of_blanks_within_a_line_are_forgiven() -> None:
    assert found("x  =   call(a,  b)", "= call(a, b)") == (
        "whitespace_normalized",
        ["=   call(a,  b)"],
    )


def test_written_out_escapes_are_decoded() -> None:
    assert found("a\n\tb", "a\\n\\tb") == ("escape_normalized", ["a\n\tb"])


def test_blanks_around_the_whole_are_forgiven() -> None:
    assert found("x = foo(bar)", "  foo(bar)\n") == ("trimmed_boundary", ["foo(bar)"])


def test_typographic_characters_are_forgiven_both_ways() -> None:
    assert found("it\u2019s “so” \u2013 ok…", 'it\'s "so" - ok...') == (
        "unicode_normalized",
        ["it\u2019s “so” \u2013 ok…"],
    )
    assert found("it's", "it\u2019s") == ("unicode_normalized", ["it's"])


def test_a_block_is_found_by_its_ends_if_the_middle_is_alike() -> None:
    text = "start\n  alpha = 1\n  beta = 2\nend\nother\n"
    assert found(text, "start\n  alpha = 1\n  beta = 22\nend")[0] == "block_anchor"
    assert find_text(text, "start\n  nothing\n  like it\nend") is None


def test_a_window_of_mostly_equal_lines_is_found() -> None:
    text = "one\ntwo two\nthree three\nfour four\nfive\n"
    assert found(text, "two twp\nthree three\nfour four") == (
        "context_aware",
        ["two two\nthree three\nfour four"],
    )


def test_what_is_not_there_is_not_found() -> None:
    assert find_text(CODE, "def h(self): pass") is None
    assert find_text(CODE, "   \n  ") is None


def test_lines_are_never_found_inside_a_line() -> None:
    assert find_lines(["foobar", "foo"], ["foo"]).spans == ((1, 2),)
    assert find_lines(["foobar"], ["foo"]) is None


def test_a_final_line_end_belongs_to_the_passage() -> None:
    assert found("  a\n  b\nc\n", "a\nb\n") == ("indentation_flexible", ["  a\n  b\n"])


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (
            CODE,
            "def f(self):\n    x = 1",
            "def f(self):\n    x = 10",
            CODE.replace("x = 1", "x = 10"),
        ),
        ("\tif a:\n\t\tb\n", "if a:\n    b", "if a:\n    c\n    d", "\tif a:\n\t\tc\n\t\td\n"),
        ("    a\n    b\n", "a\nb\n", "a\nc\n", "    a\n    c\n"),
        ("  a\n  b", "a\nb\n", "a\nc\n", "  a\n  c"),
        ("x = foo(bar)", "  foo(bar)", "  foo(baz)", "x = foo(baz)"),
        ("it\u2019s old", "it's old", "it's new", "it\u2019s new"),
        ("a\n\tb", "a\\n\\tb", "a\\n\\tc", "a\n\tc"),
        ("x\t=  1", "x = 1", "x\\t= 2", "x\t= 2"),
    ],
)
def test_a_replacement_takes_over_the_manner_of_the_file(
    text: str, old: str, new: str, expected: str
) -> None:
    assert replace_text(text, old, new, replace_all=False).text == expected


def test_several_matches_need_more_context_or_replace_all() -> None:
    assert "Found 2 matches" in str(replace_text("a a", "a", "b", replace_all=False).error)
    assert replace_text("a a", "a", "b", replace_all=True).text == "b b"


def test_similar_passages_are_never_replaced_all_at_once() -> None:
    text = "s\n alpha\n beta\ne\n" * 2
    replaced = replace_text(text, "s\n alpha\n betta\ne", "x", replace_all=True)
    assert "only similar" in str(replaced.error)


def test_added_backslashes_before_quotes_are_refused() -> None:
    old, new = "f(\n \\'alpha\\',\n1)", "f(\n \\'beta\\',\n1)"
    drifted = replace_text("f(\n  'alpha',\n 1)\n", old, new, replace_all=False)
    assert "without a backslash" in str(drifted.error)


def test_empty_and_identical_texts_are_refused() -> None:
    assert replace_text("a", "", "b", replace_all=False).error == "old_string cannot be empty"
    assert "identical" in str(replace_text("a", "a", "a", replace_all=False).error)


def test_a_passage_that_is_not_found_is_suggested() -> None:
    error = str(replace_text(CODE, "    def ff(self):\n   zzz", "", replace_all=False).error)
    assert "Did you mean one of these sections?" in error
    assert "   2|     def f(self):" in error


TEXT = st.text(alphabet="ab \t\n'\"\\\u2019x(", max_size=60)


@settings(max_examples=200, deadline=None)
@given(TEXT, TEXT.filter(bool), TEXT, TEXT)
def test_an_exact_unique_passage_is_replaced_exactly(
    before: str, old: str, after: str, new: str
) -> None:
    text = before + old + after
    replaced = replace_text(text, old, new, replace_all=False)
    if text.count(old) == 1 and old != new and text.find(old, text.find(old) + 1) < 0:
        assert replaced.text == before + new + after


@settings(max_examples=200, deadline=None)
@given(TEXT, TEXT, TEXT, st.booleans())
def test_a_replacement_never_raises_and_never_touches_other_text(
    text: str, old: str, new: str, everywhere: bool
) -> None:
    replaced = replace_text(text, old, new, replace_all=everywhere)
    assert (replaced.error is None) == bool(replaced.strategy)
    found_spans = find_text(text, old) if old else None
    if replaced.error is None and found_spans is not None:
        assert replaced.text.startswith(text[: found_spans.spans[0][0]])
        assert replaced.text.endswith(text[found_spans.spans[-1][1] :])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(alphabet="abc ", max_size=8), min_size=1, max_size=12), st.data())
def test_reindented_lines_are_found_where_they_are(lines: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(lines) - 1))
    end = data.draw(st.integers(start + 1, len(lines)))
    wanted = [f"   {line}" for line in lines[start:end]]
    if not any(line.strip() for line in wanted):
        return
    result = find_lines(lines, wanted)
    assert result is not None
    assert any(
        [line.strip() for line in lines[slice(*span)]] == [line.strip() for line in wanted]
        for span in result.spans
    )


def test_a_large_file_is_searched_quickly() -> None:
    text = "\n".join(f"line {n} of many, with “some” text" for n in range(60_000))
    assert find_text(text, "line 59999 of  many, with “some” text") is not None
    assert find_text(text, "nothing\nof this\nis there\nat all") is None
