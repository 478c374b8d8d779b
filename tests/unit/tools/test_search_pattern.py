import os
import re
import shutil
import subprocess
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.tools.globs import expand_braces, glob_to_regex
from hermes_rl.tools.search_pattern import PatternError, to_posix

LINES = [
    "foo bar", "def f(x):", "a1b22", "x=[1]", "tab\there", "a-b_c", "^caret", "{brace}", "aaa",
    "AbC", "back\\slash", 'say "hi"', "]", "[", "", "  ", "a.b", "a|b", "foo(bar)", "-", "$5",
    "caf\u00e9 olé", "a{2}", "abc123", "ABC", "12-34",
]  # fmt: skip


def grep(pattern: str, lines: list[str], program: str = "grep") -> list[int]:
    """Return the numbers of the lines that the sandbox's grep would find."""
    posix = to_posix(pattern)
    options = ["-i"] if posix.ignore_case else []
    result = subprocess.run(
        [*program.split(), "-nE", *options, "-e", posix.text],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
        check=False,
    )
    assert result.returncode in (0, 1), (pattern, posix.text, result.stderr)
    assert result.stderr == "", (pattern, posix.text)
    return [int(line.partition(":")[0]) - 1 for line in result.stdout.splitlines()]


PATTERNS = [
    r"\d+", r"^def \w+\(", r"foo|bar", r"a{2,}", r"a{2}", r"a{,2}b", r"[\d.]+", r"[^\s]+$",
    r"(?i)abc", r"(?:a|b)+c", r"é", r"é+$", r"[éx]=?", r"\bfoo\b", r"\[1\]", r"[\]\[]",
    r"[]a]", r"\t", r"\{brace\}", r"{brace}", r"a.*?b", r"a.+?b", r"(a)\1", r"(?:x)|(a)\1",
    r"[\^]", r"[\^-]", r"[-a]", r"[^\]]", r"\\", r"\x41", r"\u00e9", r'"[^"]*"', r"^$", r"^\s+$",
    r"a\.b", r"a\|b", r"\$\d", r"[+-]", r"[A-Z\]]", r"[!-/]", r"[ -~]", r"x?=", r"\S\s\S",
    r"(foo|def) ?(bar|f)", r"[\w-]+_c", r"(?P<n>a)b", r"\AAbC\Z", r"\W", r"\D\d", r"\Boo",
    r"[[:alpha:]]+[[:digit:]]", r"(?s)a.b", r"\-", r"\/", r"a{2}{", r"x{", r"}", r"[a-c]+\d{2,3}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_translated_pattern_finds_what_python_finds(pattern: str) -> None:
    if pattern == r"a{2}{":
        expected = [22] if "a{2}{" in LINES[22] else [i for i, x in enumerate(LINES) if "aa{" in x]
    else:
        python = pattern.replace("[[:alpha:]]", "[A-Za-z]").replace("[[:digit:]]", "[0-9]")
        expected = [n for n, line in enumerate(LINES) if re.search(python, line, re.ASCII)]
    assert grep(pattern, LINES) == expected


@pytest.mark.parametrize("pattern", PATTERNS)
def test_busybox_finds_the_same(pattern: str) -> None:
    if shutil.which("busybox") is None:
        pytest.skip("needs busybox")
    assert grep(pattern, LINES, "busybox grep") == grep(pattern, LINES)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(", "this parenthesis is never closed (at character 0"),
        ("a)", "this parenthesis closes nothing"),
        ("a**", "nothing to repeat (at character 2"),
        ("*.py", "nothing to repeat (at character 0"),
        (r"\p{L}", r"\p is not supported"),
        ("(?=a)", "lookaround"),
        ("(?<!a)b", "lookaround"),
        ("[a", "this bracket is never closed"),
        ("a\\", "ends in a backslash"),
        ("a\nb", "one at a time"),
        (r"a\nb", "one at a time"),
        (r"[a\n]", "one at a time"),
        ("[b-a]", "bad character range"),
        ("a{3,2}", "bad repetition range"),
        (r"(a)\2", "there is no group 2"),
        ("(?x)a", "the flag 'x'"),
        ("a" * 10_001, "more than 10,000 characters"),
    ],
)
def test_what_cannot_be_searched_for_says_why(pattern: str, expected: str) -> None:
    with pytest.raises(PatternError) as caught:
        to_posix(pattern)
    assert expected in str(caught.value)


@settings(max_examples=120, deadline=None)
@given(st.text(alphabet=r"ab1.*+?|()[]{}^$\dws-,é ", max_size=8))
def test_any_pattern_is_refused_or_understood_by_grep_as_python_does(pattern: str) -> None:
    try:
        to_posix(pattern)
    except PatternError:
        return
    found = grep(pattern, LINES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = re.compile(pattern, re.ASCII)
        except re.error:
            return
    if pattern.isascii() and not re.search(r"\[[^\]]*[\[&~|-]", pattern) and "{" not in pattern:
        ascii_lines = [(n, line) for n, line in enumerate(LINES) if line.isascii()]
        expected = [n for n, line in ascii_lines if compiled.search(line)]
        assert [n for n in found if LINES[n].isascii()] == expected


@pytest.mark.parametrize(
    ("glob", "path", "fits"),
    [
        ("*.py", "a.py", True),
        ("*.py", "d/a.py", False),
        ("**/*.py", "d/e/a.py", True),
        ("**/*.py", "a.py", True),
        ("src/*.py", "src/d/a.py", False),
        ("src/**", "src/d/a.py", True),
        ("a?c[0-9].t", "abc5.t", True),
        ("a[!0-9]", "a5", False),
        ("a[b", "a[b", True),
        ("a+b", "aab", False),
    ],
)
def test_globs_stay_within_a_name_but_for_two_stars(glob: str, path: str, fits: bool) -> None:
    assert bool(glob_to_regex(glob).match(path)) is fits


def test_braces_stand_for_their_choices() -> None:
    assert expand_braces("*.{js,ts}") == ["*.js", "*.ts"]
    assert expand_braces("{a,b{c,d}}x") == ["ax", "bcx", "bdx"]
    assert expand_braces("a{b}c") == ["a{b}c"]
    assert len(expand_braces("{a,b}" * 20)) == 100
