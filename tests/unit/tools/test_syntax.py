import argparse
import inspect
import subprocess
import sys
import warnings
from functools import partial
from types import ModuleType

import pytest

from hermes_rl.testing.loop_monitor import run_without_long_callbacks
from hermes_rl.tools.syntax import check_syntax

OK = {"status": "ok", "output": ""}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.py", "x = 1\n"),
        ("a.py", ""),
        ("a.py", "# -*- coding: latin-1 -*-\nx = 'a'\n"),
        ("A.JSON", '{"a": [1, 2]}'),
        ("a.json", ""),
        ("a.yaml", "a: !Custom {b: 1}\n---\nsecond: document\n"),
        ("a.yml", ""),
        ("a.toml", "[a]\nb = 1\n"),
    ],
)
async def test_valid_files_are_ok(path: str, text: str) -> None:
    assert await check_syntax(path, text) == OK


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.py", "def f(:\n", "SyntaxError: invalid syntax (line 1, column 7; Python 3."),
        ("a.py", "return 1\n", "'return' outside function"),
        ("a.py", "if 1:\nx\n", "IndentationError"),
        ("a.py", "a\0b", "null byte"),
        ("a.json", '{"a": 1,}', "JSONDecodeError: trailing comma is not allowed (line 1, column"),
        ("a.yaml", "a: [1\n", "YAMLError"),
        ("a.yml", "a: b: c\n", "YAMLError: mapping values are not allowed"),
        ("a.toml", "a = \n", "TOMLDecodeError: Invalid value"),
    ],
)
async def test_errors_say_what_and_where(path: str, text: str, expected: str) -> None:
    lint = await check_syntax(path, text)
    assert lint["status"] == "error"
    assert expected in lint["output"]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.ts", "let x = ;", "No linter for .ts files"),
        ("a.js", "let x = ;", "No linter for .js files"),
        ("Makefile", "x", "No linter for this kind of files"),
        ("tsconfig.json", "{ // comment\n}", "may have comments"),
        ("d/.vscode/settings.json", "{ // comment\n}", "may have comments"),
        ("chart.yaml", "a: {{ .Values.a }}", "is a template"),
        ("a.py", "x = 1\n" * 10_000, "more than 32,000 characters"),
    ],
)
async def test_what_is_not_checked_says_why(path: str, text: str, expected: str) -> None:
    lint = await check_syntax(path, text)
    assert lint["status"] == "skipped"
    assert expected in lint["message"]


async def test_hostile_sources_are_errors_and_nothing_worse() -> None:
    for unit in ("-", "(", "[0]", "x="):
        text = f"a{unit * (10_000 // len(unit))}1"
        assert (await check_syntax("a.py", text))["status"] in ("ok", "error")
        assert (await check_syntax("a.py", text * 3))["status"] in ("ok", "error", "skipped")
    nested = "[" * 20_000
    assert (await check_syntax("a.json", nested))["status"] == "error"
    assert (await check_syntax("a.toml", "a = " + nested))["status"] == "error"


async def test_warnings_of_the_checked_code_go_nowhere() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert await check_syntax("a.py", "x = '\\d'\nassert (x, 1)\n") == OK
    assert caught == []


async def test_checks_of_ordinary_files_do_not_hold_the_loop() -> None:
    python = "def f(a, b):\n    return [a + 1, b.c(d=2)]\n" * 150
    yaml = "key:\n  - name: value\n" * 20_000
    toml = "\n".join(f"k{n} = {n}" for n in range(20_000))
    for path, text in (("a.py", python), ("a.yaml", yaml), ("a.toml", toml)):
        answer = await run_without_long_callbacks(partial(check_syntax, path, text), limit_s=0.05)
        assert answer["status"] == "ok", path
    assert sys.version_info >= (3, 11)


DENSE = {
    "functions": "def f():0\n" * 2_000,
    "lambdas": "f=lambda a:a\n" * 2_000,
    "loops": "[a for a in b]\n" * 2_000,
    "names": "a;" * 15_000,
    "fields": "f'{a}{b}'\n" * 3_000,
}


@pytest.mark.parametrize("text", DENSE.values(), ids=DENSE)
async def test_python_too_dense_to_check_at_once_is_not_checked(text: str) -> None:
    lint = await check_syntax("a.py", text)
    assert lint == {"status": "skipped", "message": "Not checked: too much Python in one file"}


@pytest.mark.parametrize("module", [argparse, inspect, subprocess])
async def test_ordinary_python_of_any_allowed_length_is_checked(module: ModuleType) -> None:
    text = inspect.getsource(module)[:32_000]
    assert len(text) == 32_000
    assert (await check_syntax("a.py", text))["status"] != "skipped"
