"""The benchmarks by their three commands, as real processes: run, report, refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from hermes_rl.runlog.reader import read_run

from .evaluate_process import environment, outcomes
from .tiny_tasks import TINY, write_rows

ROOT = Path(__file__).parents[2]
FEW = ("prebuilt-image", "two-rewards", "tampering-agent")
DOCKER = ("--env.terminal_backend", "docker", "--env.data_dir_to_save_evals", "run")
CHOSEN = ("--env.task_filter", ",".join(FEW), *DOCKER)


def start(where: Path, *words: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``where``."""
    extra = {"WANDB_MODE": "", "XDG_CACHE_HOME": str(where / "cache"), **extra}
    own = where / "cache/hermes_rl"
    own.mkdir(parents=True, exist_ok=True)
    shared = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hermes_rl")
    for runtime in shared.glob("runtime*"):
        if not (own / runtime.name).exists():
            (own / runtime.name).symlink_to(runtime)
    return subprocess.run(
        words,
        cwd=where,
        env=environment(PYTHON=sys.executable, **extra),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def command(way: str, folder: str, name: str, script: str) -> list[str]:
    """Return one of the three commands."""
    benchmark = ROOT / "benchmarks" / folder
    if way == "name":
        return [sys.executable, "-m", "hermes_rl", "evaluate", name]
    if way == "script":
        path = str(benchmark / script)
        return [sys.executable, path, "evaluate", "--config", str(benchmark / "default.yaml")]
    return ["bash", str(benchmark / "run_eval.sh")]


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
@pytest.mark.parametrize(
    ("way", "folder", "name", "script", "edition"),
    [
        ("name", "tblite", "tblite", "", "1-"),
        ("script", "terminalbench_2", "terminal-bench-2", "terminalbench2_env.py", "2.0-"),
        ("shell", "terminalbench_2", "terminal-bench-2", "", "2.0-"),
        ("shell", "tblite", "tblite", "", "1-"),
    ],
)
def test_every_command_runs_the_benchmark_and_reports(
    tmp_path: Path, way: str, folder: str, name: str, script: str, edition: str
) -> None:
    words = command(way, folder, name, script)
    done = start(tmp_path, *words, "--oracle", "--env.dataset_name", str(TINY), *CHOSEN)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    recorded = read_run(tmp_path / "run")
    assert outcomes(recorded) == {(task, 0): ("finished", 1.0) for task in FEW}
    header = recorded.header
    assert (header.task_set, header.models) == (name, ["oracle"])
    assert str(header.task_set_version).startswith(edition)
    assert set(header.task_digests) == set(FEW)
    assert header.score_config["env.max_agent_turns"] == 60
    assert header.score_config["env.agent_temperature"] == 0.8
    for line in ("by category", "by difficulty", "flagged passes  1", f"{name} {edition}"):
        assert line in done.stdout, done.stdout
    metrics = orjson.loads((tmp_path / "run/metrics.json").read_bytes())
    figures = metrics["results"]["all"]
    assert metrics["results"][f"atropos|{name}_eval|0"] == figures
    assert (figures["eval/pass_rate"], figures["eval/flagged_passes"]) == (1.0, 1)
    assert figures["eval/pass_rate_category_security"] == 1.0
    assert figures["eval/pass_rate_difficulty_easy"] == 1.0
    lines = (tmp_path / "run/samples.jsonl").read_bytes().splitlines()
    samples = {sample["task_id"]: sample for sample in map(orjson.loads, lines)}
    assert samples["tampering-agent"]["flags"][0].startswith("tamper_suspect")


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
def test_a_data_set_runs_and_is_logged_to_wandb_offline(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [TINY / name for name in FEW])
    words = command("name", "terminalbench_2", "terminal-bench-2", "")
    config = str(ROOT / "benchmarks/terminalbench_2/default.yaml")
    words += ["--nop", "--config", config, "--env.dataset_name", str(rows), *CHOSEN]
    done = start(tmp_path, *words, WANDB_MODE="offline", WANDB_SILENT="true")
    assert done.returncode == 0, done.stderr
    recorded = read_run(tmp_path / "run")
    assert outcomes(recorded) == {(task, 0): ("finished", 0.0) for task in FEW}
    (logged,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    content = logged.read_bytes()
    assert b"eval/pass_rate" in content
    assert b"eval/rollouts" in content
    assert b"terminal-bench-2" in content


def test_without_a_key_wandb_stays_off_and_says_so(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hermes_rl", "evaluate", "terminal-test", "--nop"]
    words += ["--env.terminal_backend", "local", "--env.task_filter", "greeting"]
    done = start(tmp_path, *words, "--env.use_wandb", "true", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "wandb is off" in done.stderr
    plain = start(tmp_path, *words, HOME=str(tmp_path))
    assert "wandb" not in plain.stderr
    assert not (tmp_path / "wandb").exists()


@pytest.mark.parametrize("way", ["name", "script"])
def test_the_oracle_has_nothing_to_play_in_a_data_set(tmp_path: Path, way: str) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [TINY / "prebuilt-image"])
    words = command(way, "terminalbench_2", "terminal-bench-2", "terminalbench2_env.py")
    settings = ("--env.terminal_backend", "local", "--env.data_dir_to_save_evals", "run")
    done = start(tmp_path, *words, "--oracle", "--env.dataset_name", str(rows), *settings)
    assert done.returncode == 2, done.stderr
    assert "The oracle has nothing to play: none of 1 tasks of terminal-bench-2" in done.stderr
    assert "--env.dataset_name DIRECTORY" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_hub_that_cannot_be_reached_is_an_error_that_says_what_else_there_is(
    tmp_path: Path,
) -> None:
    words = command("name", "tblite", "tblite", "")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = start(tmp_path, *words, "--nop", *DOCKER, **offline)
    assert done.returncode == 2, done.stderr
    assert "NousResearch/openthoughts-tblite" in done.stderr
    assert "--env.dataset_name takes a file or a directory" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_malicious_data_set_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    shutil.copytree(TINY / "prebuilt-image", evil)
    (evil / "tests/link").symlink_to("/etc/passwd")
    rows = write_rows(tmp_path / "rows.jsonl", [evil])
    words = command("name", "terminalbench_2", "terminal-bench-2", "")
    done = start(tmp_path, *words, "--nop", "--env.dataset_name", str(rows), *DOCKER)
    assert done.returncode == 2, done.stderr
    assert "task evil, tests_tar: the archive is refused: 'link' is a link to '/etc/passwd'" in (
        done.stderr
    )
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    assert list((tmp_path / "cache/hermes_rl/tasks").iterdir()) == []
