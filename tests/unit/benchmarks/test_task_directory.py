import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.benchmarks.artifacts import Artifact
from hermes_rl.benchmarks.task_directory import TaskDirectory, load_task
from hermes_rl.benchmarks.task_file import fill_templates
from hermes_rl.benchmarks.terminal_task import content_digest
from hermes_rl.benchmarks.terminalbench_2.task_set import TerminalBench2
from hermes_rl.benchmarks.verification import CollectHook
from hermes_rl.config import EnvConfig
from hermes_rl.errors import ConfigError, TaskError
from hermes_rl.sandbox import Capability
from hermes_rl.task_selection import load_selection, load_wanted
from hermes_rl.tasks import TaskSet, describe

TASKS = Path(__file__).parents[2] / "data/tasks"

FULL = """
schema_version = "1.4"
artifacts = ["/app/log", { source = "/var/db", destination = "db", exclude = ["*.tmp"] }]
[metadata]
difficulty = "hard"
tags = ["a"]
[agent]
timeout_sec = 900
user = 1000
[verifier]
timeout_sec = 50
user = "checker"
env = { MODE = "${HERMES_T_MODE:-strict}" }
[[verifier.collect]]
command = "dump"
timeout_sec = 7
user = 0
[environment]
docker_image = "some/image:1"
build_timeout_sec = 77
cpus = 1.5
memory = "2G"
storage = "10G"
gpus = 1
workdir = "/w"
network_mode = "no-network"
env = { A = "b" }
[environment.healthcheck]
command = "true"
interval_sec = 1
retries = 9
[solution]
env = { S = "t" }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A valid task that tests then spoil."""
    return shutil.copytree(TASKS / "hello-file", tmp_path / "hello-file")


async def test_our_tasks_load_sorted_with_everything_they_say() -> None:
    tasks = {task.id: task for task in await TaskDirectory(TASKS).load()}
    assert list(tasks) == ["hello-file", "kv-server", "word-count"]
    hello = describe(tasks["hello-file"])
    assert hello.sandbox.dockerfile_dir == (TASKS / "hello-file/environment").resolve()
    assert (hello.sandbox.cpus, hello.sandbox.memory_mb) == (1, 256)
    assert (hello.deadlines.agent_s, hello.deadlines.setup_s) == (60.0, 120.0)
    assert hello.metadata["category"] == "file-operations"
    assert hello.solution is not None
    assert hello.solution.files == (TASKS / "hello-file/solution").resolve()
    assert describe(tasks["kv-server"]).sandbox.network == "none"
    words = tasks["word-count"].verifier.harness
    assert (words.workdir, words.env) == ("/srv/data", {"EXPECTED_WORDS": "5"})


async def test_one_task_folder_is_a_set_of_one() -> None:
    (task,) = await TaskDirectory(TASKS / "kv-server").load()
    assert task.id == "kv-server"
    assert task.prompt.startswith("Run a key-value server")


def test_every_field_of_the_simple_core_is_honoured(folder: Path) -> None:
    (folder / "task.toml").write_text(FULL)
    task = load_task(folder)
    spec = task.sandbox
    assert (spec.image, spec.dockerfile_dir) == ("some/image:1", None)
    assert (spec.cpus, spec.memory_mb, spec.gpus) == (1.5, 2048, 1)
    assert (spec.workdir, spec.network, spec.env) == ("/w", "none", {"A": "b"})
    assert spec.build_timeout_s == 77
    assert spec.healthcheck is not None
    assert (spec.healthcheck.interval_s, spec.healthcheck.retries) == (1, 9)
    assert spec.needs == {Capability.ISOLATION, Capability.USERS}
    verifier = task.verifier
    assert (task.agent_user, verifier.harness.user) == ("1000", "checker")
    assert (verifier.timeout_s, verifier.harness.env) == (50, {"MODE": "strict"})
    assert verifier.collect == [CollectHook(command="dump", timeout_s=7, user="0")]
    assert verifier.artifacts == [
        Artifact(source="/app/log"),
        Artifact(source="/var/db", destination="db", exclude=("*.tmp",)),
    ]
    assert (task.deadlines.agent_s, task.deadlines.reward_s) == (900, 50)
    assert task.deadlines.reward_margin_s > 60
    assert task.solution is not None
    assert task.solution.env["S"] == "t"


def spoil_toml(old: str, new: str) -> Callable[[Path], Any]:
    def spoil(folder: Path) -> None:
        path = folder / "task.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return spoil


def remove(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).unlink()


def write(name: str, content: bytes) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (write("task.toml", b"[agent"), r"task.toml is not valid TOML"),
        (write("task.toml", b"\xff"), r"task.toml is not valid TOML"),
        (
            spoil_toml("timeout_sec = 60.0", 'timeout_sec = "soon"'),
            r"task.toml, agent.timeout_sec: .*'soon'",
        ),
        (spoil_toml("timeout_sec = 60.0", "timeout_sec = -1"), r"agent.timeout_sec"),
        (
            spoil_toml("timeout_sec = 60.0", "timeout_sek = 60.0"),
            r"unknown field agent.timeout_sek",
        ),
        (spoil_toml('"256M"', '"lots"'), r'environment.memory: write a size such as "512M"'),
        (
            spoil_toml("[agent]", '[agent]\nnetwork_mode = "public"'),
            r"agent.network_mode: .*one phase",
        ),
        (spoil_toml("cpus = 1", 'network_mode = "allowlist"'), r"environment.network_mode"),
        (spoil_toml("cpus = 1", 'os = "windows"'), r"environment.os"),
        (
            spoil_toml("cpus = 1", "tpu = { type = 'x' }"),
            r"environment.tpu: TPUs are not supported",
        ),
        (spoil_toml("[agent]", "[[steps]]\nname = 'x'\n[agent]"), r"steps: multi-step"),
        (
            spoil_toml("[verifier]", "[verifier]\nenvironment_mode = 'separate'"),
            r"verifier.environment_mode",
        ),
        (
            spoil_toml("[verifier]", "[verifier]\nenv = { K = '${OPENAI_API_KEY}' }"),
            r"credentials never enter",
        ),
        (
            spoil_toml("[verifier]", "[verifier]\nenv = { K = '${HERMES_T_NO}' }"),
            r"needs the variable HERMES_T_NO",
        ),
        (remove("instruction.md"), r"instruction.md cannot be read"),
        (write("instruction.md", b" \n"), r"instruction.md is empty"),
        (write("instruction.md", b"\xff\xfe"), r"instruction.md cannot be read"),
        (remove("tests/test.sh"), r"tests/test.sh is missing"),
        (remove("environment/Dockerfile"), r"environment.docker_image: give an image"),
        (write("environment/docker-compose.yaml", b""), r"compose files are not supported"),
        (write("trajectory.json", b"[]"), r"trajectories are not supported"),
        (spoil_toml('schema_version = "1.4"', "artifacts = ['app/x']"), r"artifacts.0.source"),
        (
            spoil_toml('schema_version = "1.4"', "artifacts = [{source = '/x', service = 'db'}]"),
            r"artifacts.0.service: services of compose",
        ),
        (
            spoil_toml(
                "[verifier]", "[[verifier.collect]]\ncommand = 'x'\nservice = 'y'\n[verifier]"
            ),
            r"verifier.collect.0.service",
        ),
    ],
)
def test_a_malformed_task_names_file_and_field(
    folder: Path, spoil: Callable[[Path], Any], message: str
) -> None:
    spoil(folder)
    with pytest.raises(TaskError, match=message):
        load_task(folder)


def test_force_build_takes_the_dockerfile_although_there_is_an_image(folder: Path) -> None:
    spoil_toml("cpus = 1", 'docker_image = "some/image:1"')(folder)
    assert load_task(folder).sandbox.image == "some/image:1"
    built = load_task(folder, force_build=True).sandbox
    assert (built.image, built.dockerfile_dir) == (None, (folder / "environment").resolve())
    (folder / "environment/Dockerfile").unlink()
    assert load_task(folder).sandbox.image == "some/image:1"
    with pytest.raises(TaskError, match="leave force_build out, or put a Dockerfile"):
        load_task(folder, force_build=True)


def test_whether_the_tests_write_a_report_is_read_from_them(folder: Path) -> None:
    assert not load_task(folder).verifier.wants_report
    (folder / "tests/test.sh").write_text("pytest --ctrf /logs/verifier/ctrf.json\n")
    assert load_task(folder).verifier.wants_report


async def test_all_faults_of_all_tasks_are_reported_at_once(tmp_path: Path) -> None:
    for name in ("a", "b", "good"):
        shutil.copytree(TASKS / "hello-file", tmp_path / name)
    (tmp_path / "a/instruction.md").unlink()
    (tmp_path / "b/tests/test.sh").unlink()
    with pytest.raises(TaskError) as caught:
        await TaskDirectory(tmp_path).load()
    assert "a/instruction.md" in str(caught.value)
    assert "b/tests/test.sh" in str(caught.value)
    assert "good" not in str(caught.value)


@pytest.mark.parametrize("make", [TaskDirectory, lambda path: TerminalBench2(str(path))])
async def test_only_wanted_tasks_may_be_malformed(
    tmp_path: Path, make: Callable[[Path], TaskSet], caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("bad", "good", "worse"):
        shutil.copytree(TASKS / "hello-file", tmp_path / name)
    spoil_toml("cpus = 1", "cpus = 1\ngpu_kind = 'h200'")(tmp_path / "bad")
    (tmp_path / "worse/task.toml").write_text("no toml at all")
    without = {"skip_tasks": ["bad", "worse"]}
    for wanted in (without, {"task_filter": ["g*"]}):
        assert [task.id for task in await load_wanted(make(tmp_path), **wanted)] == ["good"]
        assert "left out as asked: bad, worse" in caplog.text
        selection = await load_selection(make(tmp_path), EnvConfig(**wanted))
        assert list(selection.tasks) == ["good"]
    with pytest.raises(TaskError, match="gpu_kind") as caught:
        await load_wanted(make(tmp_path), skip_tasks=["worse"])
    assert "worse" not in str(caught.value)
    with pytest.raises(ConfigError, match="fits none of 3 tasks"):
        await load_wanted(make(tmp_path), task_filter=["no-*"])
    category = "category=*"
    with pytest.raises(TaskError, match="gpu_kind"):
        await load_wanted(make(tmp_path), task_filter=[category])
    assert (await load_wanted(make(tmp_path), skip_tasks=[category, "worse"])) == []


async def test_a_directory_without_tasks_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"holds no task: no task.toml"):
        await TaskDirectory(tmp_path).load()
    with pytest.raises(TaskError, match="is no directory"):
        await TaskDirectory(tmp_path / "nowhere").load()


def test_a_task_without_a_solution_has_none(folder: Path) -> None:
    (folder / "solution/solve.sh").unlink()
    assert load_task(folder).solution is None


def test_the_digest_follows_names_contents_and_modes(folder: Path) -> None:
    digests = {content_digest(folder)}
    (folder / "tests/test.sh").chmod(0o644)
    digests.add(content_digest(folder))
    (folder / "tests/extra").write_text("")
    digests.add(content_digest(folder))
    (folder / "tests/extra").rename(folder / "tests/other")
    digests.add(content_digest(folder))
    (folder / "tests/other").write_text("x")
    digests.add(content_digest(folder))
    (folder / "tests/link").symlink_to("/etc/passwd")
    digests.add(content_digest(folder))
    assert len(digests) == 6
    assert load_task(folder).metadata["digest"] == content_digest(folder)


def test_templates_take_the_hosts_values_and_defaults() -> None:
    env = {"A": "${X}/${Y:-d}", "B": "plain $X ${}"}
    assert fill_templates(env, {"X": "1"}, where="w") == {"A": "1/d", "B": "plain $X ${}"}
