"""terminal-bench-2 and tblite as task sets: sources, defaults, versions, skips, caches."""

from __future__ import annotations

import gzip
import importlib.resources
import os
import shutil
import tarfile
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.benchmarks.task_rows import RowDefaults, tasks_of_rows
from hermes_rl.benchmarks.tblite.task_set import TBLite
from hermes_rl.benchmarks.tblite.tblite_env import TBLiteEvalEnv
from hermes_rl.benchmarks.terminal_task import TerminalTask
from hermes_rl.benchmarks.terminalbench_2.task_set import TerminalBench2
from hermes_rl.benchmarks.terminalbench_2.terminalbench2_env import TerminalBench2EvalEnv
from hermes_rl.cli.task_sets import find_tasks
from hermes_rl.config import EnvConfig
from hermes_rl.errors import TaskError
from hermes_rl.sandbox import Capability
from hermes_rl.task_selection import load_wanted, select
from hermes_rl.tasks import MalformedTasks
from hermes_rl.types import JSONObject
from tests.integration.tiny_tasks import TINY, archive_text, row_of, write_rows

DEFAULTS = RowDefaults(agent_s=1800, test_s=600)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def task_of(row: JSONObject, tmp_path: Path, **options: Any) -> TerminalTask:
    (task,) = tasks_of_rows([row], defaults=DEFAULTS, cache=tmp_path / "tasks", **options)
    return task


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


# Rows -------------------------------------------------------------------------------------------


def test_a_row_becomes_the_task_its_folder_is(tmp_path: Path) -> None:
    folder = TINY / "binary-files"
    task = task_of(row_of(folder), tmp_path)
    assert (task.id, task.prompt) == ("binary-files", (folder / "instruction.md").read_text())
    assert (task.deadlines.agent_s, task.deadlines.reward_s) == (60.0, 60.0)
    assert {k: task.metadata[k] for k in ("category", "difficulty", "tags")} == {
        "category": "data-processing",
        "difficulty": "hard",
        "tags": ["tiny"],
    }
    assert files_below(task.verifier.harness.tests) == files_below(folder / "tests")
    assert task.sandbox.dockerfile_dir is not None
    assert files_below(task.sandbox.dockerfile_dir) == files_below(folder / "environment")
    assert os.access(task.verifier.harness.tests / "test.sh", os.X_OK)
    assert task.solution is None
    assert Capability.ISOLATION in task.sandbox.needs


def test_a_prebuilt_image_is_taken_unless_building_is_forced(tmp_path: Path) -> None:
    row = row_of(TINY / "built-image") | {"docker_image": "some/image:1"}
    assert task_of(row, tmp_path).sandbox.image == "some/image:1"
    built = task_of(row, tmp_path, force_build=True).sandbox
    assert built.image is None
    assert built.dockerfile_dir is not None


def test_columns_may_be_missing_and_take_defaults(tmp_path: Path) -> None:
    row = row_of(TINY / "prebuilt-image")
    for column in ("category", "difficulty", "tags", "agent_timeout_sec", "test_timeout_sec"):
        del row[column]
    task = task_of(row, tmp_path)
    assert (task.agent_s, task.verifier.timeout_s) == (1800, 600)
    assert set(task.metadata) == {"tags", "digest"}
    nan = float("nan")
    row |= {"agent_timeout_sec": nan, "test_timeout_sec": None, "category": nan, "tags": None}
    assert task_of(row, tmp_path).agent_s == 1800


@pytest.mark.parametrize(
    ("tags", "expected"),
    [('["a", "b"]', ["a", "b"]), (["a"], ["a"]), ("a, b", ["a, b"]), ('"a"', ["a"]), ("", [])],
)
def test_tags_are_a_list_however_they_are_written(
    tmp_path: Path, tags: Any, expected: list[str]
) -> None:
    assert task_of(row_of(TINY / "built-image") | {"tags": tags}, tmp_path).metadata["tags"] == (
        expected
    )


def test_the_script_column_wins_over_the_archive_and_may_be_all_there_is(tmp_path: Path) -> None:
    row = row_of(TINY / "built-image")
    script = "#!/bin/sh\npytest --ctrf x\n"
    for archive in (row["tests_tar"], ""):
        task = task_of(row | {"test_sh": script, "tests_tar": archive}, tmp_path)
        assert (task.verifier.harness.tests / "test.sh").read_text() == script
        assert task.verifier.wants_report
    kept = task_of(row | {"test_sh": ""}, tmp_path).verifier.harness.tests / "test.sh"
    assert kept.read_bytes() == (TINY / "built-image/tests/test.sh").read_bytes()


def test_archives_are_unpacked_once_per_content(tmp_path: Path) -> None:
    row = row_of(TINY / "built-image")
    first = task_of(row, tmp_path).verifier.harness.tests
    stamp = (first / "test.sh").stat().st_ino
    assert task_of(row, tmp_path).verifier.harness.tests == first
    assert (first / "test.sh").stat().st_ino == stamp
    other = task_of(row | {"test_sh": "#!/bin/sh\n"}, tmp_path).verifier.harness.tests
    assert other != first
    assert len(list((tmp_path / "tasks").iterdir())) == 2


def test_the_digest_follows_what_decides_the_score_and_nothing_else(tmp_path: Path) -> None:
    row = row_of(TINY / "built-image")
    plain = task_of(row, tmp_path).metadata["digest"]
    for same in ({"tags": "[]"}, {"tests_tar": archive_text(TINY / "built-image/tests")}):
        assert task_of(row | same, tmp_path).metadata["digest"] == plain
    for other in (
        {"instruction": "Something else."},
        {"agent_timeout_sec": 61.0},
        {"test_timeout_sec": 61.0},
        {"docker_image": "x"},
        {"test_sh": "#!/bin/sh\n"},
        {"environment_tar": archive_text(TINY / "binary-files/environment")},
    ):
        assert task_of(row | other, tmp_path).metadata["digest"] != plain


def broken(**columns: Any) -> Callable[[JSONObject], JSONObject]:
    return lambda row: row | columns


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (broken(task_name=None), r"row 0, task_name: it has no name"),
        (broken(instruction=" "), r"task built-image, instruction: it is empty"),
        (broken(instruction=5), r"instruction: it must be text, not int"),
        (broken(agent_timeout_sec="soon"), r"agent_timeout_sec: .* seconds, not 'soon'"),
        (broken(test_timeout_sec=-1), r"test_timeout_sec: .* not -1"),
        (broken(tests_tar="%%%"), r"tests_tar: it is no base64"),
        (broken(tests_tar="aGFsbG8="), r"tests_tar: the archive is refused: it is no gzip"),
        (broken(tests_tar="", test_sh=""), r"test_sh: there is no verifier"),
        (broken(environment_tar=""), r"environment_tar: there is no Dockerfile"),
    ],
)
def test_a_malformed_row_names_task_and_column(
    tmp_path: Path, spoil: Callable[[JSONObject], JSONObject], message: str
) -> None:
    with pytest.raises(TaskError, match=message):
        task_of(spoil(row_of(TINY / "built-image")), tmp_path)
    assert list((tmp_path / "tasks").glob(".partial-*")) == []


EVIL = {
    "'/etc/passwd' leads out": {"name": "/etc/passwd"},
    "'../x' leads out": {"name": "../x"},
    "'link' is a link to '/etc'": {"type": tarfile.SYMTYPE, "linkname": "/etc"},
    "'link' is a hard link": {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"},
    "'link' is a character device": {"type": tarfile.CHRTYPE, "devmajor": 1},
    "more than 2,147,483,648 bytes": {"size": 10 << 30},
}


@pytest.mark.parametrize("column", ["environment_tar", "tests_tar"])
@pytest.mark.parametrize("problem", EVIL)
async def test_a_malicious_archive_is_refused_by_task_and_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, problem: str
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    info = tarfile.TarInfo("link")
    for field, value in EVIL[problem].items():
        setattr(info, field, value)
    header = gzip.compress(info.tobuf() + bytes(1024))
    row = row_of(TINY / "built-image") | {column: b64encode(header).decode()}
    (tmp_path / "rows.jsonl").write_bytes(orjson.dumps(row))
    with pytest.raises(TaskError) as caught:
        await TerminalBench2(str(tmp_path / "rows.jsonl")).load()
    said = f"task built-image, {column}: the archive is refused: "
    assert said in str(caught.value)
    assert problem in str(caught.value)
    assert list((cache / "hermes_rl/tasks").iterdir()) == []


def test_an_archive_without_a_script_is_named(tmp_path: Path) -> None:
    row = row_of(TINY / "built-image")
    row |= {"test_sh": "", "tests_tar": row["environment_tar"]}
    with pytest.raises(TaskError, match=r"tests_tar: there is no test.sh in it"):
        task_of(row, tmp_path)


def test_all_faults_of_all_rows_are_reported_at_once(tmp_path: Path) -> None:
    rows = [row_of(TINY / "built-image") | {"task_name": f"t{n}"} for n in range(30)]
    for row in rows[2:]:
        row["instruction"] = ""
    with pytest.raises(TaskError) as caught:
        tasks_of_rows(rows, defaults=DEFAULTS, cache=tmp_path)
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[0]) == (
        21,
        "task t2, instruction: it is empty, and it is the prompt.",
    )
    assert lines[-1] == "... and 8 more"


def test_a_cache_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match="where tasks are unpacked, cannot be used"):
        tasks_of_rows([], defaults=DEFAULTS, cache=tmp_path / "file")


def test_what_a_killed_process_left_half_unpacked_is_removed_later(tmp_path: Path) -> None:
    for name, age_s in ((".partial-old", 7200), (".partial-new", 60)):
        (tmp_path / name / "x").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age_s,) * 2)
    tasks_of_rows([], defaults=DEFAULTS, cache=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".partial-new"]


# Task sets --------------------------------------------------------------------------------------


async def test_the_source_may_be_a_folder_of_folders_one_folder_or_rows(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", sorted(TINY.iterdir()))
    for source, count in ((TINY, 13), (TINY / "own-workdir", 1), (rows, 13)):
        tasks = await TerminalBench2(str(source)).load()
        assert len(tasks) == count
        assert [task.id for task in tasks] == sorted(task.id for task in tasks)


@pytest.mark.parametrize("tasks", [TerminalBench2, TBLite])
async def test_only_wanted_rows_of_a_data_set_may_not_be_malformed(
    tmp_path: Path, tasks: type[TerminalBench2], caplog: pytest.LogCaptureFixture
) -> None:
    good = row_of(TINY / "built-image")
    bad = [
        good | {"task_name": "no-prompt", "instruction": ""},
        good | {"task_name": "no-archive", "tests_tar": "%%%", "category": "broken"},
        good | {"task_name": ""},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(orjson.dumps(row) for row in (bad[0], good, *bad[1:])))
    with pytest.raises(MalformedTasks) as caught:
        await load_wanted(tasks(str(path)))
    assert [task.id for task in caught.value.malformed] == ["no-prompt", "no-archive", "row-3"]
    assert [task.id for task in caught.value.tasks] == ["built-image"]
    unwanted = ["no-prompt", "category=broken", "row-3"]
    for chosen in ({"task_filter": ["built-*"]}, {"skip_tasks": unwanted}):
        (task,) = await load_wanted(tasks(str(path)), **chosen)
        assert task.id == "built-image"
    assert "Malformed, and left out as asked: no-prompt, no-archive, row-3." in caplog.text
    with pytest.raises(MalformedTasks, match="no-archive, tests_tar: it is no base64"):
        await load_wanted(tasks(str(path)), task_filter=["built-*", "no-archive"])


async def test_a_data_set_without_the_columns_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(orjson.dumps({"prompt": "x"}))
    with pytest.raises(TaskError, match="lacks the columns task_name, instruction"):
        await TerminalBench2(str(tmp_path / "rows.jsonl")).load()


async def test_the_version_names_the_edition_and_every_task(tmp_path: Path) -> None:
    copy = shutil.copytree(TINY, tmp_path / "copy")
    versions = []
    for change in (None, "built-image/tests/test.sh"):
        if change:
            (copy / change).write_text("#!/bin/sh\n")
        tasks = TerminalBench2(str(copy))
        assert tasks.version is None
        await tasks.load()
        versions.append(str(tasks.version))
    assert all(version.startswith("2.0-") for version in versions)
    assert versions[0] != versions[1]


async def test_tasks_that_cannot_run_on_modal_say_why(tmp_path: Path) -> None:
    for name in ("qemu-startup", "qemu-alpine-ssh", "crack-7z-hash", "fix-git"):
        shutil.copytree(TINY / "built-image", tmp_path / name)
    tasks = {task.id: task.sandbox.not_on for task in await TerminalBench2(str(tmp_path)).load()}
    assert "KVM" in tasks["qemu-startup"]["modal"]
    assert set(tasks["crack-7z-hash"]) == set(tasks["qemu-alpine-ssh"]) == {"modal"}
    assert tasks["fix-git"] == {}


async def test_names_globs_and_metadata_choose_tasks() -> None:
    tasks = await TerminalBench2(str(TINY)).load()

    def chosen(**options: list[str]) -> list[str]:
        return [task.id for task in select(list(tasks), **options)]

    assert chosen(task_filter=["no-network", "own-workdir"]) == ["no-network", "own-workdir"]
    assert chosen(task_filter=["no-*"], skip_tasks=["no-boot*"]) == ["no-network"]
    assert chosen(task_filter=["difficulty=hard"]) == ["binary-files", "no-bootstrap", "slow-tests"]


@pytest.mark.parametrize(
    ("tasks", "agent_s", "test_s", "dataset"),
    [
        (TerminalBench2, 1800, 1800, "NousResearch/terminal-bench-2"),
        (TBLite, 1200, 600, "NousResearch/openthoughts-tblite"),
    ],
)
async def test_each_benchmark_has_its_data_set_and_its_limits(
    tmp_path: Path,
    tasks: type[TerminalBench2],
    agent_s: float,
    test_s: float,
    dataset: str,
) -> None:
    row = row_of(TINY / "built-image")
    del row["agent_timeout_sec"], row["test_timeout_sec"]
    (tmp_path / "rows.jsonl").write_bytes(orjson.dumps(row))
    (task,) = await tasks(str(tmp_path / "rows.jsonl")).load()
    assert (task.agent_s, task.verifier.timeout_s) == (agent_s, test_s)
    assert tasks.dataset == dataset


@pytest.mark.parametrize(
    ("tasks", "env", "folder"),
    [
        (TerminalBench2, TerminalBench2EvalEnv, "terminalbench_2"),
        (TBLite, TBLiteEvalEnv, "tblite"),
    ],
)
def test_task_set_environment_and_yaml_have_the_settings_of_published_scores(
    tasks: type[TerminalBench2],
    env: type[TerminalBench2EvalEnv],
    folder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TERMINAL_ENV", raising=False)
    text = importlib.resources.files(f"hermes_rl.benchmarks.{folder}").joinpath("default.yaml")
    in_yaml = yaml.safe_load(text.read_text())["env"]
    config, (server,) = env.config_init()
    assert server.server_type == "openai"
    for made in (EnvConfig(**in_yaml), tasks.config_init(), config):
        assert made.enabled_toolsets == ["terminal", "file"]
        assert (made.max_agent_turns, made.max_token_length) == (60, 32000)
        assert (made.agent_temperature, made.terminal_timeout) == (0.8, 300)
        assert (made.task_timeout, made.test_timeout) == (None, None)
    HermesAgentEnvConfig(**in_yaml)
    assert tasks.config_init().terminal_backend == config.terminal_backend == "modal"
    monkeypatch.setenv("TERMINAL_ENV", "docker")
    assert tasks.config_init().terminal_backend == "docker"
    assert env.name == tasks.name


def test_the_command_line_finds_them_and_passes_what_was_set() -> None:
    source = find_tasks("terminal-bench-2")
    made = source.make(EnvConfig(dataset_name=str(TINY), force_build=True))
    assert isinstance(made, TerminalBench2)
    assert made._source == str(TINY)
    assert made._force_build
    assert isinstance(find_tasks("tblite").make(EnvConfig()), TBLite)
    directory = find_tasks(str(TINY)).make(EnvConfig(force_build=True))
    assert directory._force_build  # type: ignore[attr-defined]
