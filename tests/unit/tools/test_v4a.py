import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.tools.v4a import apply_hunks, parse_patch


def edited(text: str, patch: str) -> str:
    parsed = parse_patch("*** Update File: f\n" + patch)
    assert not parsed.error, parsed.error
    outcome = apply_hunks(text, parsed.changes[0].hunks)
    assert not outcome.errors, outcome.errors
    return outcome.text


def refusal(text: str, patch: str) -> str:
    parsed = parse_patch("*** Update File: f\n" + patch)
    assert not parsed.error, parsed.error
    outcome = apply_hunks(text, parsed.changes[0].hunks)
    assert outcome.errors
    return outcome.errors[0]


def test_all_four_kinds_of_change_are_parsed() -> None:
    parsed = parse_patch(
        "*** Begin Patch\n*** Update File: a\n-x\n+y\n\n*** Add File: b\n+one\n+\n"
        "*** Delete File: c\n*** Move File: d -> e\n*** End Patch"
    )
    assert [(c.kind, c.path, c.target) for c in parsed.changes] == [
        ("update", "a", ""),
        ("add", "b", ""),
        ("delete", "c", ""),
        ("move", "d", "e"),
    ]
    assert parsed.changes[0].hunks[0].lines == [("-", "x"), ("+", "y")]
    assert parsed.changes[1].content == ["one", ""]


def test_an_update_may_also_move() -> None:
    change = parse_patch("*** Update File: a\n*** Move to: b\n@@\n-x\n+y").changes[0]
    assert (change.kind, change.target, change.shown) == ("update", "b", "a -> b")


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ("", "it names no file"),
        ("garbage", "line 1: 'garbage' stands before any"),
        ("*** Update File: a", "UPDATE 'a': no hunks found"),
        ("*** Update File: a\n only\n context", "UPDATE 'a': only context lines"),
        ("*** Move File: a", "line 1: a move is written"),
        ("*** Delete File:", "line 1: '*** Delete File:' names no path"),
        ("*** Add File: a\nno plus", "line 2: every line of an added file starts with '+'"),
        ("*** Delete File: a\n-x", "line 2: delete takes no content"),
        ("*** Update File: a\n*** Replace File: b", "line 2: unknown instruction"),
    ],
)
def test_a_malformed_patch_says_what_and_where(patch: str, expected: str) -> None:
    assert expected in parse_patch(patch).error


def test_context_places_a_change() -> None:
    assert edited("a\nb\nc\nb\n", " c\n-b\n+B") == "a\nb\nc\nB\n"


def test_a_line_without_a_mark_is_context() -> None:
    assert edited("a\nb\n", "a\n-b\n+B") == "a\nB\n"


def test_a_hint_chooses_between_equal_places() -> None:
    text = "def f():\n    x\ndef g():\n    x\n"
    assert edited(text, "@@ def g(): @@\n-    x\n+    y") == "def f():\n    x\ndef g():\n    y\n"


def test_without_a_hint_equal_places_are_ambiguous() -> None:
    assert "is ambiguous: it fits at lines 1, 3" in refusal("x\na\nx\n", "-x\n+y")


def test_a_hunk_after_another_is_searched_after_it() -> None:
    assert edited("a\nx\nb\nx\n", "-a\n+A\n@@\n b\n-x\n+y") == "A\nx\nb\ny\n"


def test_lines_without_a_place_go_after_the_hint_or_to_the_end() -> None:
    assert edited("a\nb\n", "@@ a @@\n+new") == "a\nnew\nb\n"
    assert edited("a\nb\n", "@@\n+new") == "a\nb\nnew\n"
    assert edited("a\nb\n", "+new\n*** End of File") == "a\nb\nnew\n"
    assert "no line contains the hint 'z'" in refusal("a\n", "@@ z @@\n+new")


def test_the_end_of_file_mark_takes_the_last_place() -> None:
    assert edited("x\na\nx\n", "-x\n+y\n*** End of File") == "x\na\ny\n"


def test_ranges_of_unified_diffs_are_read_over() -> None:
    assert edited("a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n+c") == "a\nc\n"


def test_a_missing_final_line_end_stays_missing() -> None:
    assert edited("a\nb", "-b\n+c") == "a\nc"


def test_an_empty_file_can_be_filled() -> None:
    assert edited("", "+a") == "a\n"


def test_context_keeps_the_form_it_has_in_the_file() -> None:
    text = "\tif a:\n\t\tb  \n\t\tc\n"
    assert edited(text, " if a:\n     b\n-    c\n+    d") == "\tif a:\n\t\tb  \n\t\td\n"


def test_mixed_line_ends_are_taken_over() -> None:
    assert edited("a\r\nb\r\nc\n", " a\n-b\n+B\n+D") == "a\r\nB\r\nD\r\nc\n"


def test_every_hunk_that_does_not_fit_is_reported() -> None:
    parsed = parse_patch("*** Update File: f\n-zz\n+y\n@@ def q @@\n-qq\n+y")
    errors = apply_hunks("a\nb\n", parsed.changes[0].hunks).errors
    assert [error.partition(" not")[0] for error in errors] == [
        "hunk 1 (no hint)",
        "hunk 2 (hint 'def q')",
    ]


LINES = st.lists(st.sampled_from(["a", "b", "  c", "", "d d"]), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(LINES, st.data(), st.lists(st.sampled_from(["x", "  y"]), max_size=3), st.booleans())
def test_a_hunk_with_all_the_context_does_what_it_says(
    lines: list[str], data: st.DataObject, added: list[str], ends: bool
) -> None:
    start = data.draw(st.integers(0, len(lines)))
    end = data.draw(st.integers(start, len(lines)))
    if start == end and not added:
        return
    text = "\n".join(lines) + "\n" * ends
    if not ends and lines[-1] == "":
        return
    hunk = [
        *(f" {line}" for line in lines[:start]),
        *(f"-{line}" for line in lines[start:end]),
        *(f"+{line}" for line in added),
        *(f" {line}" for line in lines[end:]),
    ]
    expected = [*lines[:start], *added, *lines[end:]]
    outcome = edited(text, "@@\n" + "\n".join(hunk))
    assert outcome == "\n".join(expected) + "\n" * (ends and bool(expected))


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="*@ +-abFile:Upd\n>", max_size=80), st.text(alphabet="ab \n", max_size=30))
def test_no_text_makes_parsing_or_applying_raise(patch: str, text: str) -> None:
    for header in ("", "*** Update File: f\n"):
        for change in parse_patch(header + patch).changes:
            apply_hunks(text, change.hunks)
