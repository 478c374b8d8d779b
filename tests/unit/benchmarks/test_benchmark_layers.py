"""Which way the benchmarks' modules depend: task sets know neither engine nor Atropos."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = [ROOT / "benchmarks" / name for name in ("terminalbench_2", "tblite", "yc_bench")]
ABOVE = ("atropos", "cli", "engine", "evaluation", "rollout", "runlog", "stream", "trial")
"""Modules of the package that a task set may not need."""


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_only_the_environment_file_imports_atropos(folder: Path) -> None:
    for path in folder.glob("*.py"):
        knows_atropos = any(name.startswith("hermes_rl.atropos") for name in imported(path))
        is_environment = path.name.endswith("_env.py") and "tblite" not in path.name
        assert knows_atropos == is_environment, path
    assert list(imported(folder / "__init__.py")) == []


def test_loading_tasks_needs_neither_engine_nor_atropos_nor_datasets() -> None:
    code = (
        "import sys\n"
        "import hermes_rl.benchmarks.tblite.task_set, hermes_rl.benchmarks.task_directory\n"
        f"above = [f'hermes_rl.{{name}}' for name in {ABOVE}] + ['atroposlib', 'datasets']\n"
        "print([n for n in sys.modules if n in above or n.startswith('hermes_rl.atropos')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_shell_script_runs_the_script_beside_it(folder: Path) -> None:
    shell = folder / "run_eval.sh"
    subprocess.run(["bash", "-n", str(shell)], check=True, timeout=10)
    (script,) = folder.glob("*_env.py")
    assert f'"$here/{script.name}" evaluate --config "$here/default.yaml"' in shell.read_text()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_shell_script_says_so_where_its_python_has_no_hermes_rl(
    folder: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    done = subprocess.run(
        ["bash", str(folder / "run_eval.sh"), "--nop"],
        env={"PATH": os.environ["PATH"], "PYTHON": str(bare)},
        cwd=folder.parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"run_eval.sh: {bare} has no hermes_rl. Activate its environment, or set PYTHON.\n"
    )
