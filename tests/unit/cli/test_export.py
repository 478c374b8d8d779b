"""``hermes_rl export`` of what is not what it takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_rl.cli.main import main


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("not json", "line 1 is no JSON"),
        ("[1]", "line 1 holds no messages with scores"),
        ('{"messages": [[]]}', "line 1 holds no messages with scores"),
        ('{"messages": [[]], "scores": [1, 2]}', "line 1 holds no messages with scores"),
        ('{"messages": [[{}]], "scores": [1]}', "line 1 is not as 'process' writes it"),
        ('{"messages": [[3]], "scores": ["x"]}', "line 1 is not as 'process' writes it"),
    ],
)
def test_another_file_is_an_error_that_names_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(f"{line}\n")
    assert main(["export", str(source), str(output)]) == 2
    assert said in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no/out.jsonl", "No such file"),
        ("in.jsonl/out.jsonl", "Not a directory"),
        ("x" * 300, "File name too long"),
    ],
)
def test_an_output_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, why: str
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("")
    assert main(["export", str(source), str(tmp_path / name)]) == 2
    assert f"cannot be written: {why}" in capsys.readouterr().err
