import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.tools.diff import MAX_DIFF_CHARS, unified_diff
from hermes_rl.tools.text_file import TextFile, looks_binary


def test_a_diff_has_three_lines_of_context() -> None:
    before = "".join(f"{n}\n" for n in range(10))
    after = before.replace("5\n", "five\n")
    assert unified_diff(before, after, "/d/f") == (
        "--- a/d/f\n+++ b/d/f\n@@ -3,7 +3,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"
    )


def test_a_missing_line_end_is_marked() -> None:
    assert unified_diff("a", "a\n", "f").endswith("-a\n\\ No newline at end of file\n+a\n")


def test_new_and_deleted_files_are_compared_with_nothing() -> None:
    assert unified_diff(None, "a\n", "f") == "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n"
    assert unified_diff("a\n", None, "f") == "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n"


def test_a_huge_diff_is_cut_and_says_so() -> None:
    text = unified_diff("a\n" * 30_000, "b\n" * 30_000, "f")
    assert len(text) < MAX_DIFF_CHARS + 100
    assert "diff cut: 180,040 characters" in text


LINES = st.lists(st.sampled_from(["a", "b", "c", "", " d"]), max_size=14)


@settings(max_examples=60, deadline=None)
@given(LINES, LINES, st.booleans(), st.booleans())
def test_patch_applies_our_diffs(
    tmp_path_factory: pytest.TempPathFactory,
    old: list[str],
    new: list[str],
    old_ends: bool,
    new_ends: bool,
) -> None:
    program = shutil.which("patch")
    if program is None:
        pytest.skip("needs the program patch")
    before = "\n".join(old) + "\n" * (old_ends and bool(old))
    after = "\n".join(new) + "\n" * (new_ends and bool(new))
    if before == after:
        return
    directory = tmp_path_factory.mktemp("diff")
    (directory / "f").write_text(before)
    subprocess.run(
        [program, "-p1", "--quiet"],
        input=unified_diff(before, after, "f"),
        text=True,
        cwd=directory,
        check=True,
    )
    target = Path(directory / "f")
    assert (target.read_text() if target.exists() else "") == after


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200)
    | st.text(max_size=100).map(lambda text: text.encode("utf-8", "replace"))
)
def test_every_byte_of_a_file_survives(data: bytes) -> None:
    assert TextFile.decode(data).encode() == data


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(alphabet="ab é\r", max_size=5), max_size=6), st.booleans())
def test_files_with_windows_line_ends_survive(lines: list[str], bom: bool) -> None:
    data = (b"\xef\xbb\xbf" if bom else b"") + "\r\n".join(lines).encode()
    assert TextFile.decode(data).encode() == data


def test_windows_line_ends_are_hidden_only_if_all_are() -> None:
    assert TextFile.decode(b"a\r\nb\r\n").text == "a\nb\n"
    assert TextFile.decode(b"a\r\nb\n").text == "a\r\nb\n"


def test_binary_is_judged_by_content() -> None:
    assert looks_binary(b"text\0text")
    assert looks_binary(bytes(range(1, 9)) * 10)
    assert not looks_binary("plain\ttext\nmit Umläuten".encode())
    assert not looks_binary(b"")
    assert not looks_binary(b"\x1b[31mred\x1b[0m")
