"""``python -m hermes_rl evaluate`` as a user runs it: real processes, real sandboxes."""

import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import orjson
import pytest

from hermes_rl.runlog.reader import read_run

from .docker_boxes import docker
from .evaluate_process import (
    DATA,
    SLOW,
    end,
    interrupt,
    outcomes,
    processes_with,
    run,
    start,
    wait_for_records,
)

DOCKER = ("--env.terminal_backend", "docker", "--env.terminal_image", "hermes-test:latest")
BACKENDS = [
    pytest.param((), id="local"),
    pytest.param(DOCKER, id="docker", marks=pytest.mark.docker),
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Flags of a backend; docker's needs its service."""
    if request.param:
        request.getfixturevalue("docker_image")
    flags: tuple[str, ...] = request.param
    return flags


def run_dir(where: Path) -> Path:
    """The one run directory below ``where``."""
    (found,) = (where / "runs").iterdir()
    return found


def containers_of(process: subprocess.Popen[str]) -> list[str]:
    """Containers that a process made, in every state."""
    lines = docker("ps", "-a", "--filter", "label=hermes.owner", "--format", "{{.ID}} {{.Labels}}")
    return [line for line in lines.splitlines() if f":{process.pid}:" in line]


@pytest.mark.parametrize(("model", "reward"), [("--oracle", 1.0), ("--nop", 0.0)])
def test_oracle_solves_everything_and_doing_nothing_solves_nothing(
    tmp_path: Path, model: str, reward: float, backend: tuple[str, ...]
) -> None:
    few = ("--env.task_filter", "greeting,count,answer,result,text-01,sum-02,product-03,count-04")
    done = run(tmp_path, "evaluate", "terminal-test", model, *few, *backend)
    assert done.returncode == 0, done.stderr
    recorded = read_run(run_dir(tmp_path))
    assert len(recorded.records) == 8
    assert {record.reward for record in recorded.records.values()} == {reward}
    assert f"pass rate       {reward:.3f}" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.docker
@pytest.mark.parametrize(("model", "reward"), [("--oracle", 1.0), ("--nop", 0.0)])
def test_our_tiny_tasks_evaluate_in_docker(
    tmp_path: Path, model: str, reward: float, docker_image: str
) -> None:
    done = run(tmp_path, "evaluate", str(DATA / "tasks"), model, "--env.terminal_backend", "docker")
    assert done.returncode == 0, done.stderr + done.stdout
    recorded = read_run(run_dir(tmp_path))
    assert outcomes(recorded) == {
        (name, 0): ("finished", reward) for name in ("hello-file", "kv-server", "word-count")
    }
    assert set(recorded.header.task_digests) == set(recorded.header.task_ids)
    ctrf = recorded.records["word-count", 0].evidence["ctrf"]["summary"]
    assert ctrf["passed"] == (3 if reward else 0)


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
def test_a_configuration_that_nothing_can_start_with_leaves_no_run_and_is_mended_by_a_flag(
    tmp_path: Path,
) -> None:
    words = ("evaluate", "terminal-test", "--oracle", "--env.task_filter", "greeting")
    words += ("--env.terminal_backend", "docker", "--env.data_dir_to_save_evals", "run")
    refused = run(tmp_path, *words)
    assert refused.returncode == 2, refused.stderr
    assert "--env.terminal_image IMAGE" in refused.stderr
    assert "--resume" not in refused.stderr + refused.stdout
    assert not (tmp_path / "run").exists()
    done = run(tmp_path, *words, "--env.terminal_image", "hermes-test:latest")
    assert done.returncode == 0, done.stderr
    assert outcomes(read_run(tmp_path / "run")) == {("greeting", 0): ("finished", 1.0)}


def test_tasks_that_need_isolation_are_skipped_by_name_on_the_local_backend(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, "evaluate", str(DATA / "tasks"), "--oracle")
    assert done.returncode == 4, done.stderr
    assert "isolation" in done.stdout
    recorded = read_run(run_dir(tmp_path))
    assert {record.status for record in recorded.records.values()} == {"skipped"}


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_the_first_signal_stops_in_time_and_resume_gives_the_same_totals(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    seconds = f"7.{os.getpid()}"
    words = ("evaluate", SLOW, "--oracle", "--env.dataset_name", seconds)
    process = start(tmp_path, *words, "--env.data_dir_to_save_evals", "run")
    wait_for_records(process, tmp_path / "run", 6)
    began_s = time.monotonic()
    interrupt(process, number)
    returned, stdout, stderr = end(process, 15)
    assert time.monotonic() - began_s < 15
    assert returned == code, stderr
    assert "Traceback" not in stderr
    assert "Continue with: evaluate --resume run" in stdout
    recorded = read_run(tmp_path / "run")
    assert outcomes(recorded) == {(f"quick-{n}", 0): ("finished", 1.0) for n in range(6)}
    assert orjson.loads((tmp_path / "run/metrics.json").read_bytes())["hermes_rl"]["recorded"] == 6
    assert processes_with([f"sleep {seconds}"]) == []


def test_an_interrupted_run_resumes_to_the_totals_of_an_undisturbed_one(
    tmp_path: Path, backend: tuple[str, ...]
) -> None:
    words = ("evaluate", SLOW, "--oracle", "--env.max_eval_workers", "12", *backend)
    process = start(tmp_path, *words, "--env.data_dir_to_save_evals", "run")
    wait_for_records(process, tmp_path / "run", 4)
    assert not backend or containers_of(process)
    interrupt(process, signal.SIGINT)
    returned, _, stderr = end(process, 15)
    assert returned == 130, stderr
    finished = outcomes(read_run(tmp_path / "run"))
    assert 4 <= len(finished) < 18
    if backend:
        assert containers_of(process) == []
    resumed = run(tmp_path, "evaluate", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert outcomes(read_run(tmp_path / "run")) == {
        **{(f"quick-{n}", 0): ("finished", 1.0) for n in range(6)},
        **{(f"slow-{n}", 0): ("finished", 1.0) for n in range(12)},
    }
    assert "18 of 18" in resumed.stdout
    lines = (tmp_path / "run/results.jsonl").read_bytes().splitlines()
    assert len(lines) == 1 + 1 + 18


def test_the_second_signal_ends_at_once_and_nothing_lives_on(tmp_path: Path) -> None:
    seconds = f"9.{os.getpid()}"
    words = ("evaluate", SLOW, "--oracle", "--env.dataset_name", seconds)
    process = start(tmp_path, *words, "--env.data_dir_to_save_evals", "run")
    wait_for_records(process, tmp_path / "run", 6)
    interrupt(process, signal.SIGINT)
    interrupt(process, signal.SIGINT)
    returned, _, _ = end(process, 5)
    assert returned == 130
    assert set(read_run(tmp_path / "run").records) >= {(f"quick-{n}", 0) for n in range(6)}
    deadline_s = time.monotonic() + 5
    while processes_with([f"sleep {seconds}"]) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert processes_with([f"sleep {seconds}"]) == []


def test_a_killed_run_loses_nothing_that_finished(tmp_path: Path) -> None:
    words = ("evaluate", SLOW, "--oracle", "--env.dataset_name", "2")
    process = start(tmp_path, *words, "--env.data_dir_to_save_evals", "run")
    wait_for_records(process, tmp_path / "run", 6)
    process.kill()
    end(process, 15)
    assert set(outcomes(read_run(tmp_path / "run"))) == {(f"quick-{n}", 0) for n in range(6)}
    resumed = run(tmp_path, "evaluate", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert "18 of 18" in resumed.stdout


def test_resume_refuses_what_changes_scores_and_allows_the_rest(tmp_path: Path) -> None:
    few = ("--env.task_filter", "split=train", "--env.data_dir_to_save_evals", "run")
    assert run(tmp_path, "evaluate", "--oracle", *few).returncode == 0
    refused = run(tmp_path, "evaluate", "--resume", "run", "--env.max_agent_turns", "5")
    assert refused.returncode == 2
    assert "env.max_agent_turns: 30 -> 5" in refused.stderr
    other = run(tmp_path, "evaluate", "terminal-test", "--resume", "run", "--nop")
    assert other.returncode == 2
    assert 'openai.0.server_type: "oracle" -> "nop"' in other.stderr
    allowed = run(tmp_path, "evaluate", "--resume", "run", "--env.max_eval_workers", "2")
    assert allowed.returncode == 0, allowed.stderr
    again = run(tmp_path, "evaluate", "--oracle", *few)
    assert again.returncode == 2
    assert "already holds a run" in again.stderr


def test_a_changed_environment_variable_does_not_change_a_resumed_run(tmp_path: Path) -> None:
    few = ("--env.task_filter", "greeting", "--env.data_dir_to_save_evals", "run")
    assert run(tmp_path, "evaluate", "--oracle", *few).returncode == 0
    resumed = run(tmp_path, "evaluate", "--resume", "run", TERMINAL_ENV="docker")
    assert resumed.returncode == 0, resumed.stderr


def test_several_attempts_give_pass_at_k(tmp_path: Path) -> None:
    few = ("--env.task_filter", "split=train", "--env.attempts", "4")
    done = run(tmp_path, "evaluate", "--oracle", *few)
    assert done.returncode == 0, done.stderr
    assert re.search(r"pass@4 +1\.000", done.stdout)
    assert "12 of 12" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["evaluate", "--env.max_agent_trns", "3"], 2, "Did you mean env.max_agent_turns"),
        (["evaluate", "terminal-tset"], 2, "Did you mean 'terminal-test'"),
        (["evaluate", "--config", "gone.yaml"], 2, "gone.yaml cannot be read"),
        (["evaluate", "--resume", "nowhere"], 2, "nowhere"),
        (["evaluate", "--oracle", "--nop"], 2, "not allowed with"),
        (["evaluate", "--oracle", "--env.terminal_backend", "dcoker"], 2, "Did you mean 'docker'"),
        (["evaluate", "--oracle", "--env.task_filter", "gretting"], 2, "greeting"),
        (["evaluate", "--oracle", "--env.skip_tasks", "*"], 4, "skip_tasks leave no task"),
        (["evaluate", "--oracle", "--env.terminal_lifetime", "1"], 2, "terminal_lifetime"),
        (["evaluate", "--oracle", "--env.enabled_toolsets", "termnal"], 2, "'terminal'"),
        (["view", "nowhere"], 2, "no run directory"),
        (["view", "x", "--env.seed", "1"], 2, "takes no settings"),
        (["evaluat"], 2, "invalid choice"),
        ([], 2, ""),
    ],
)
def test_a_mistake_is_one_clear_message_and_no_traceback(
    tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    done = run(tmp_path, *words)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unreachable_backend_stops_the_run_with_its_fix(tmp_path: Path) -> None:
    done = run(tmp_path, "evaluate", "--oracle", *DOCKER, DOCKER_HOST=f"unix://{tmp_path}/no.sock")
    assert done.returncode == 3, done.stderr
    assert "ocker" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_key_stops_the_run_with_one_line(tmp_path: Path, refusing_server: str) -> None:
    done = run(
        tmp_path,
        "evaluate",
        *("--openai.base_url", refusing_server, "--openai.model_name", "m"),
        OPENAI_API_KEY="sk-wrong-and-secret",
    )
    assert done.returncode == 3, done.stderr
    assert "401" in done.stderr
    assert "Traceback" not in done.stderr
    everything = done.stdout + done.stderr
    for path in (tmp_path / "runs").rglob("*"):
        everything += path.read_text() if path.is_file() else ""
    assert "sk-wrong-and-secret" not in everything


@pytest.fixture
def refusing_server() -> Iterator[str]:
    """A model server that knows no key."""
    import http.server
    import threading

    class Refuse(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"error": {"message": "bad key"}}'
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuse)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_dotenv_supplies_what_the_environment_lacks(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TERMINAL_ENV=dcoker\n")
    done = run(tmp_path, "evaluate", "--oracle")
    assert done.returncode == 2
    assert "'dcoker'" in done.stderr


def test_transcripts_and_view_show_commands_outputs_and_exit_codes(tmp_path: Path) -> None:
    few = ("--env.task_filter", "greeting", "--env.data_dir_to_save_evals", "run")
    assert run(tmp_path, "evaluate", "--oracle", *few).returncode == 0
    shown = run(tmp_path, "view", "run", "greeting").stdout
    assert "$ printf '%s\\n' 'Hello from Hermes Agent' > ~/greeting.txt" in shown
    assert "[exit code 0]" in shown
    assert "reward 1" in shown
    table = run(tmp_path, "view", "run").stdout
    assert re.search(r"greeting +0 +1 ", table)


def test_a_reader_that_goes_away_ends_view_quietly(tmp_path: Path) -> None:
    few = ("--env.task_filter", "split=train", "--env.data_dir_to_save_evals", "run")
    assert run(tmp_path, "evaluate", "--oracle", *few).returncode == 0
    process = start(tmp_path, "view", "run")
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.wait(timeout=30)
    process.stderr.close()


def test_on_a_terminal_progress_is_live_and_ctrl_c_leaves_it_in_order(tmp_path: Path) -> None:
    terminal, end_of_process = pty.openpty()
    words = ("evaluate", SLOW, "--oracle", "--env.data_dir_to_save_evals", "run")
    process = start(tmp_path, *words, stdio=end_of_process)
    os.close(end_of_process)
    seen = b""
    while b" 6 passed" not in seen:
        seen += os.read(terminal, 4096)
    interrupt(process, signal.SIGINT)
    with suppress(OSError):
        while piece := os.read(terminal, 4096):
            seen += piece
    os.close(terminal)
    assert process.wait(timeout=15) == 130
    assert seen.count(b"\x1b[?25l") == seen.count(b"\x1b[?25h") == 1
    assert b"INCOMPLETE" in seen


def test_list_names_what_is_installed(tmp_path: Path) -> None:
    listed = run(tmp_path, "list").stdout
    for name in ("terminal-test", "docker", "local", "hermes", "terminal"):
        assert re.search(rf"^  {name}$", listed, re.MULTILINE), name
    only_backends = run(tmp_path, "list", "backends").stdout.split()
    assert only_backends == sorted(only_backends)
    assert {"docker", "local"} <= set(only_backends)
    assert "terminal-test" not in only_backends


def test_evaluate_needs_no_atropos(tmp_path: Path) -> None:
    blocker = tmp_path / "blocked/atroposlib"
    blocker.mkdir(parents=True)
    (blocker / "__init__.py").write_text("raise ImportError('blocked')\n")
    few = ("--env.task_filter", "greeting")
    done = run(tmp_path, "evaluate", "--oracle", *few, PYTHONPATH=str(tmp_path / "blocked"))
    assert done.returncode == 0, done.stderr


def test_a_finished_run_has_no_leftover_in_its_directory(tmp_path: Path) -> None:
    few = ("--env.task_filter", "split=train", "--env.data_dir_to_save_evals", "run")
    assert run(tmp_path, "evaluate", "--oracle", *few).returncode == 0
    assert sorted(os.listdir(tmp_path / "run")) == [
        ".lock",
        "config.json",
        "metrics.json",
        "results.jsonl",
        "samples.jsonl",
        "transcripts",
    ]
    assert sorted(os.listdir(tmp_path)) == ["run"]


def test_two_processes_cannot_work_on_one_run(tmp_path: Path) -> None:
    words = ("evaluate", SLOW, "--oracle", "--env.data_dir_to_save_evals", "run")
    process = start(tmp_path, *words)
    wait_for_records(process, tmp_path / "run", 6)
    second = run(tmp_path, "evaluate", "--resume", "run")
    interrupt(process, signal.SIGINT)
    end(process, 15)
    assert second.returncode == 2
    assert f"another process (pid {process.pid})" in second.stderr
    assert isinstance(process, subprocess.Popen)
