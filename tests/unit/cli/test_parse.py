"""``hermes_rl parse`` prints what a parser makes of a text."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hermes_rl.cli.main import main

TEXT = """Hm.
<tool_call>
<function=head>
<parameter=lines>
3
</parameter>
</function>
</tool_call>"""
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "head",
            "parameters": {"properties": {"lines": {"type": "integer"}}},
        },
    }
]


def _run(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    assert main(["parse", *map(str, words)]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def test_a_file_is_parsed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "turn.txt").write_text(TEXT)
    shown = _run(capsys, "--parser", "qwen3_coder", tmp_path / "turn.txt")
    (call,) = shown["tool_calls"]
    assert (shown["content"], call["name"]) == ("Hm.", "head")
    assert json.loads(call["arguments"]) == {"lines": "3"}


def test_tools_give_the_types(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "turn.txt").write_text(TEXT)
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    words = ("--parser", "qwen3_coder", "--tools", tmp_path / "tools.json", tmp_path / "turn.txt")
    assert json.loads(_run(capsys, *words)["tool_calls"][0]["arguments"]) == {"lines": 3}


def test_standard_input_is_read_and_bytes_that_are_no_text_do_not_matter(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = b'\xff<tool_call>{"name": "ls", "arguments": {x}}</tool_call>'
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(raw)))
    shown = _run(capsys, "--parser", "hermes")
    assert shown["tool_calls"] is None
    (invalid,) = shown["invalid"]
    assert (invalid["name"], invalid["code"], invalid["position"]) == ("ls", "json", 1)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--parser", "hermse"], "Did you mean 'hermes'"),
        (["--parser", "hermes", "no-such-file"], "Cannot read no-such-file"),
        (["--parser", "hermes", "--tools", "bad.json"], "is not JSON"),
        (["--parser", "hermes", "--tools", "object.json"], "must hold a list of tool schemas"),
        (["--parser", "hermes", "--env.x", "1"], "takes no settings"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.json").write_text("{")
    Path("object.json").write_text("{}")
    assert main(["parse", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
