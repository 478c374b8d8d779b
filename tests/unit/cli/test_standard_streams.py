"""Output that is closed, full or has lost its reader, and what the machine refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.cli.exit_codes import NO_MORE_THREADS, ExitCode, exit_code_after
from hermes_rl.runlog.reader import read_run

TASKS = f"{Path(__file__).parents[2] / 'data' / 'slow_tasks.py'}:SlowTasks"
LIMIT_S = 120.0
OPEN_A_FILE = """
from hermes_rl.cli.standard_streams import occupy_standard_streams
import os, sys
occupy_standard_streams()
with open(sys.argv[1], "w") as file:
    print("lost")
    print("lost", file=sys.stderr, flush=True)
    os.write(2, b"lost")
    file.write(str(file.fileno()) + sys.stdin.read())
"""


def shell(line: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which ``$0`` is our Python and ``$1`` ... are ``words``."""
    return subprocess.run(
        ["bash", "-c", line, sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=LIMIT_S,
    )


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", "2>&-", ">&-"])
def test_a_closed_descriptor_is_not_taken_by_a_file(tmp_path: Path, closed: str) -> None:
    done = shell(f'"$0" -c "$1" file </dev/null {closed}', OPEN_A_FILE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "file").read_text()) > 2


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_a_run_outlives_the_place_of_its_progress(tmp_path: Path, redirection: str) -> None:
    words = "--oracle --env.dataset_name 0.1 --env.terminal_backend local"
    line = f'"$0" -m hermes_rl evaluate "$1" {words} --env.data_dir_to_save_evals run {redirection}'
    done = shell(line, TASKS, cwd=tmp_path)
    assert (done.returncode, "18 of 18" in done.stdout) == (0, True)
    assert len(read_run(tmp_path / "run").records) == 18


def test_a_report_that_cannot_be_written_is_no_bug(tmp_path: Path) -> None:
    done = shell('"$0" -m hermes_rl list >/dev/full', cwd=tmp_path)
    assert done.returncode == ExitCode.STOPPED
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_went_away_ends_a_command_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "hermes_rl", "sandboxes", "list", "--backend", "local"]
    done = subprocess.run(words, stdout=writer, stderr=writer, check=False, timeout=LIMIT_S)
    os.close(writer)
    assert done.returncode == 141


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError(NO_MORE_THREADS), ExitCode.STOPPED, "ulimit -u"),
        (OSError(24, "Too many open files"), ExitCode.STOPPED, "ulimit -n"),
        (ExceptionGroup("", [ExceptionGroup("", [OSError(24, "")])]), ExitCode.STOPPED, "ulimit"),
        (ExceptionGroup("", [OSError(24, ""), ValueError()]), ExitCode.BUG, "this is a bug"),
        (OSError(2, "No such file"), ExitCode.BUG, "this is a bug"),
    ],
)
def test_what_the_machine_refuses_is_told_from_a_bug(
    capsys: pytest.CaptureFixture[str], error: Exception, code: ExitCode, words: str
) -> None:
    def work() -> int:
        raise error

    assert exit_code_after(work) == code
    assert words in capsys.readouterr().err
