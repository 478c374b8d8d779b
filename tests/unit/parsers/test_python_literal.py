"""Python literals: the same values as Python's own reader, nothing more, and where they end."""

from __future__ import annotations

import ast
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.parsers.python_literal import BadLiteral, read_literal

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
LITERALS = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(), x, max_size=4)
)


@settings(max_examples=200, deadline=None, database=None)
@given(LITERALS.filter(lambda value: "inf" not in repr(value)))
def test_what_python_writes_is_read_back(value: Any) -> None:
    text = repr(value)
    assert read_literal(text + " ]rest", 0) == (value, len(text))


@settings(max_examples=300, deadline=None, database=None)
@given(st.text("'\"\\ab1.-_ \n[](){},:xnuU{}TrueNone", max_size=30))
def test_nothing_is_accepted_that_python_refuses(text: str) -> None:
    try:
        value, end = read_literal(text, 0)
    except BadLiteral:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = ast.literal_eval(f"({text[:end].strip()}\n)")
    assert _as_lists(expected) == value


def _as_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_lists(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(
    "text",
    [
        *("x", "f(1)", "{1, 2}", "{1: 2, 3}", "{[]: 1}", "b'x'", "f'x'", "1j", "007", "...", "-"),
        *("[1 2]", "[1+2]", "[,]", "(,)", "{,}", "{'a' 1}", "'a\nb'", "lambda: 0", "'\\xZ'"),
        *("'\\N{no such}'", "9" * 5000, "[" * 600 + "]" * 600, "0x", "1_", "- x"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadLiteral):
        read_literal(text + ")", 0)


@pytest.mark.parametrize("text", ["", "[", "[1,", "{'a'", "{'a':", "'abc", '"""a"', "(1", "Tru"])
def test_a_literal_that_is_cut_off_fails_at_the_end(text: str) -> None:
    with pytest.raises(BadLiteral) as caught:
        read_literal(text, 0)
    assert caught.value.position == len(text)
