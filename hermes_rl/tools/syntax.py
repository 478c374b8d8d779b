"""Syntax checks of what is written, in this process: nothing is executed, nothing installed.

``.py .json .yaml .yml .toml`` are checked, by name; other files and too big ones are skipped.
A check returns the ``lint`` object of ``write_file`` and ``patch``: ``{"status": "ok", "output":
""}``, ``{"status": "error", "output": "..."}`` or ``{"status": "skipped", "message": "..."}``.

Python is judged by the version this library runs on, which the message names. YAML is checked for
syntax only (any tag, several documents); files with template marks (``{{``, ``{%``) are skipped,
and so are the JSON dialects that allow comments (``tsconfig*.json``, ``.vscode/``).
"""

from __future__ import annotations

import posixpath
import re
import sys
import tomllib
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import orjson
import yaml

from hermes_rl.tools.threads import in_thread
from hermes_rl.types import JSONObject

__all__ = ["STRICT_EXTENSIONS", "check_syntax"]

STRICT_EXTENSIONS = frozenset({".json", ".yaml", ".yml", ".toml"})
"""``write_file`` refuses content of these that does not parse."""
_MAX_COMPILE_MS = 8.0
"""Compiling cannot be interrupted. Ordinary code of 32,000 characters takes some 3 ms; dense code
up to 90: most of it goes into tokens, replacement fields and, above all, scopes."""
_QUICK_PYTHON_CHARS = 1_500
_TOKEN = re.compile(r"\w+|[^\w\s]|\n")
_SCOPE = re.compile(r"\b(?:lambda|def|class|for)\b")
_PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"


@dataclass(slots=True, frozen=True)
class _Checker:
    """``check`` returns an error or None; ``slow`` ones yield the interpreter in a thread."""

    check: Callable[[str], str | None]
    max_chars: int
    slow: bool = False


async def check_syntax(path: str, text: str) -> JSONObject:
    """Check ``text`` as the content of ``path``; returns a ``lint`` object."""
    extension = posixpath.splitext(path)[1].lower()
    checker = _CHECKERS.get(extension)
    reason = f"No linter for {extension or 'this kind of'} files"
    if checker is not None:
        reason = _why_skipped(path, text, checker)
    if checker is None or reason:
        return {"status": "skipped", "message": reason}
    error = await in_thread(checker.check, text) if checker.slow else checker.check(text)
    return {"status": "error" if error else "ok", "output": error or ""}


def _why_skipped(path: str, text: str, checker: _Checker) -> str:
    if len(text) > checker.max_chars:
        return f"Not checked: more than {checker.max_chars:,} characters"
    if checker is _PYTHON_CODE and _compile_ms(text) > _MAX_COMPILE_MS:
        return "Not checked: too much Python in one file"
    if checker is _JSON and _allows_comments(path):
        return "Not checked: this JSON file may have comments"
    if checker is _YAML and ("{{" in text or "{%" in text):
        return "Not checked: this YAML file is a template"
    return ""


def _compile_ms(text: str) -> float:
    """Return about how long compiling ``text`` holds the interpreter."""
    if len(text) <= _QUICK_PYTHON_CHARS:
        return 0.0
    tokens = len(_TOKEN.findall(text))
    return 0.0007 * tokens + 0.025 * len(_SCOPE.findall(text)) + 0.002 * text.count("{")


def _allows_comments(path: str) -> bool:
    directory, name = posixpath.split(path)
    return name.startswith(("tsconfig", "jsconfig")) or posixpath.basename(directory) in (
        ".vscode",
        ".devcontainer",
    )


def _check_python(text: str) -> str | None:
    # Not in a thread: the filters of `warnings` belong to the process, and two threads that
    # change and restore them at once would leave them changed.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text.encode("utf-8", "surrogateescape"), "<file>", "exec", dont_inherit=True)
        except SyntaxError as error:
            where = f"line {error.lineno}, column {error.offset}"
            return f"{type(error).__name__}: {error.msg} ({where}; {_PYTHON})"
        except (ValueError, RecursionError, MemoryError, OverflowError) as error:
            return f"{type(error).__name__}: {error} ({_PYTHON})"
    return None


def _check_json(text: str) -> str | None:
    if not text.strip():
        return None
    try:
        orjson.loads(text.encode("utf-8", "surrogateescape"))
    except orjson.JSONDecodeError as error:
        message = str(error).partition(": line ")[0]
        return f"JSONDecodeError: {message} (line {error.lineno}, column {error.colno})"
    return None


def _check_yaml(text: str) -> str | None:
    try:
        for _ in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            pass
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        return f"YAMLError: {error.problem or error.context}{where}"
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        return f"YAMLError: {error}"
    return None


def _check_toml(text: str) -> str | None:
    try:
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        return f"TOMLDecodeError: {error}"
    return None


# The limits keep a check that holds the interpreter below some 10 ms on ordinary content.
_PYTHON_CODE = _Checker(_check_python, 32_000)
_JSON = _Checker(_check_json, 500_000)
_YAML = _Checker(_check_yaml, 1_000_000, slow=True)
_CHECKERS = {
    ".py": _PYTHON_CODE,
    ".json": _JSON,
    ".yaml": _YAML,
    ".yml": _YAML,
    ".toml": _Checker(_check_toml, 500_000, slow=True),
}
