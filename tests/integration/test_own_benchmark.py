"""The benchmark of docs/own_benchmark.py, run as the page says, and installed as a package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from hermes_rl.runlog.reader import read_run

from .evaluate_process import environment, outcomes, run

DOCS = Path(__file__).parents[2] / "docs"
LOCAL = ("--env.terminal_backend", "local")


def test_the_page_shows_the_file() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (DOCS / "own_benchmark.md").read_text(), re.S)
    assert shown == (DOCS / "own_benchmark.py").read_text()


def test_a_copy_of_the_file_runs_with_oracle_and_nop(tmp_path: Path) -> None:
    shutil.copy(DOCS / "own_benchmark.py", tmp_path)
    for switch, reward in (("--oracle", 1.0), ("--nop", 0.0)):
        words = ("own_benchmark.py:CsvTotals", switch, "--env.seed", "3")
        directory = ("--env.data_dir_to_save_evals", switch.strip("-"))
        done = run(tmp_path, "evaluate", *words, *LOCAL, *directory)
        assert done.returncode == 0, done.stderr
        recorded = read_run(tmp_path / switch.strip("-"))
        assert outcomes(recorded) == {(f"total-{n}", 0): ("finished", reward) for n in range(6)}
        assert recorded.header.task_set_version == "1"
        assert "by category" in done.stdout


def test_an_entry_point_makes_it_known_by_name(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "my_package").mkdir(parents=True)
    shutil.copy(DOCS / "own_benchmark.py", package / "my_package/own_benchmark.py")
    (package / "my_package/__init__.py").write_text("")
    (toml,) = re.findall(r"```toml\n(.*?)```", (DOCS / "own_benchmark.md").read_text(), re.S)
    (package / "pyproject.toml").write_text(f'[project]\nname = "mine"\nversion = "1"\n{toml}')
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    site = tmp_path / "site"
    subprocess.run([*pip, "--target", str(site), str(package)], check=True, timeout=100)
    words = [sys.executable, "-m", "hermes_rl", "evaluate", "csv-totals", "--oracle", *LOCAL]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(site)),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "6 of 6" in done.stdout
