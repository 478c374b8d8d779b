import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import orjson
import pytest

from hermes_rl.errors import ResumeMismatch, RunLogError
from hermes_rl.results import RolloutFailure, RolloutResult, RolloutTimings
from hermes_rl.runlog.files import AppendFile, RunLock, write_whole
from hermes_rl.runlog.reader import read_config, read_metrics, read_run, read_transcript
from hermes_rl.runlog.schema import RunHeader
from hermes_rl.runlog.writer import RunLog
from hermes_rl.types import AgentResult, Reward, StopReason, Timings, ToolError, Usage


def header(**changes: object) -> RunHeader:
    fields: dict[str, object] = {
        "run_id": "r1",
        "created_at": "2026-01-01T00:00:00+00:00",
        "engine_version": "0",
        "task_set": "demo",
        "models": ["m"],
        "attempts": 2,
        "task_ids": ["a", "b"],
        "tools": ["terminal"],
        "score_config": {"env.max_agent_turns": 30, "env.agent_temperature": 1.0},
    }
    return RunHeader.model_validate(fields | changes)


def log_of(directory: Path, run: RunHeader | None = None, *, resume: bool = False) -> RunLog:
    return RunLog(directory, run or header(), {"tasks": "demo"}, resume=resume, now=lambda: "now")


def result(
    task: str = "a", attempt: int = 0, reward: float = 1.0, text: str = "hi"
) -> RolloutResult:
    agent = AgentResult(
        messages=[
            {"role": "user", "content": text},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}, {"id": "2"}]},
        ],
        turns_used=1,
        stop_reason=StopReason.FINISHED,
        usage=Usage(5, 7, requests=1),
        timings=Timings(model_s=1.0, waiting_s=0.5),
        tool_errors=[ToolError(1, "terminal", "{}", "bad", "{}")],
        managed_state={"nodes": [{"tokens": [1, 2]}]},
    )
    return RolloutResult(
        task_id=task,
        attempt=attempt,
        reward=Reward(reward, {"why": "because"}),
        agent=agent,
        timings=RolloutTimings(agent_s=2.0),
        tools=({"type": "function"},),
        metadata={"category": "c"},
    )


def errored(task: str = "a", attempt: int = 0) -> RolloutResult:
    failure = RolloutFailure(kind="Capacity", message="no room", phase="setup", attempts=3)
    return RolloutResult(task_id=task, attempt=attempt, status="errored", failure=failure)


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Make the kernel refuse to let any file of this process grow beyond a size."""
    import signal

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


async def test_what_is_appended_can_be_read_back(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run") as log:
        await log.append(result(reward=0.5))
        await log.append(errored("b"))
    run = read_run(tmp_path / "run")
    assert run.header == header()
    assert not run.torn
    record = run.records["a", 0]
    assert (record.reward, record.passed, record.evidence) == (0.5, False, {"why": "because"})
    assert (record.turns, record.tool_calls, record.tool_errors) == (1, 2, 1)
    assert record.usage["completion_tokens"] == 7
    assert record.timings["agent"] == 2.0
    assert record.timings["waiting"] == 0.5
    assert record.metadata == {"category": "c"}
    assert run.records["b", 0].status == "errored"
    assert run.records["b", 0].transcript is None
    transcript = read_transcript(tmp_path / "run", "a", 0)
    assert transcript.messages == result().agent.messages  # type: ignore[union-attr]
    assert transcript.header.tools == [{"type": "function"}]
    assert transcript.tool_errors[0]["error"] == "bad"
    assert transcript.sequences == [{"tokens": [1, 2]}]
    assert read_config(tmp_path / "run") == {"tasks": "demo"}


async def test_the_record_follows_its_transcript(tmp_path: Path) -> None:
    """A record that names a transcript which is not there would be evidence lost."""
    async with log_of(tmp_path / "run") as log:
        (tmp_path / "run/transcripts").write_text("in the way")
        with pytest.raises(RunLogError):
            await log.append(result())
    assert read_run(tmp_path / "run").records == {}


async def test_a_cancelled_rollout_leaves_no_record(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run") as log:
        with pytest.raises(RunLogError, match="cancelled"):
            await log.append(RolloutResult(task_id="a", status="cancelled"))
    assert read_run(tmp_path / "run").records == {}


async def test_a_second_start_in_the_same_directory_is_refused(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run"):
        pass
    with pytest.raises(RunLogError, match=r"already holds a run.*--resume"):
        async with log_of(tmp_path / "run"):
            pass


async def test_resume_owes_what_is_missing_or_errored(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run") as log:
        assert log.owed == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
        await log.append(result("a", 0))
        await log.append(errored("b", 0))
        await log.append(RolloutResult(task_id="b", attempt=1, status="skipped"))
    async with log_of(tmp_path / "run", header(run_id="other"), resume=True) as log:
        assert log.owed == [("b", 0), ("a", 1)]
        assert log.header.run_id == "r1"
        await log.append(result("b", 0))
        await log.append(result("a", 1))
        summary = await log.summarise(wall_s=1.0)
    run = read_run(tmp_path / "run")
    assert [record.status for record in run.records.values()].count("errored") == 0
    assert len(run.resumed) == 1
    assert summary.complete
    assert summary.headline.passed == 3


async def test_resume_names_each_field_that_affects_scores_old_and_new(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run"):
        pass
    changed = header(
        score_config={"env.max_agent_turns": 60, "env.agent_temperature": 1.0},
        task_ids=["a", "c"],
        tools=["terminal", "patch"],
    )
    with pytest.raises(ResumeMismatch) as caught:
        async with log_of(tmp_path / "run", changed, resume=True):
            pass
    text = str(caught.value)
    assert "env.max_agent_turns: 30 -> 60" in text
    assert 'tools: ["terminal"] -> ["terminal","patch"]' in text
    assert "task b" in text
    assert "task c" in text
    assert "temperature" not in text
    assert read_run(tmp_path / "run").resumed == []


async def test_changed_tasks_are_a_mismatch(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run", header(task_digests={"a": "1", "b": "2"})):
        pass
    with pytest.raises(ResumeMismatch, match=r"task b \(digest\)"):
        async with log_of(tmp_path / "run", header(task_digests={"a": "1", "b": "3"}), resume=True):
            pass


@pytest.mark.parametrize("cut", [1, 2, 40, 200])
async def test_a_torn_tail_is_tolerated_and_cut_off_on_resume(tmp_path: Path, cut: int) -> None:
    async with log_of(tmp_path / "run") as log:
        await log.append(result("a", 0))
        await log.append(result("b", 0))
    results = tmp_path / "run/results.jsonl"
    os.truncate(results, results.stat().st_size - cut)
    run = read_run(tmp_path / "run")
    assert run.torn
    assert set(run.records) == {("a", 0)}
    async with log_of(tmp_path / "run", resume=True) as log:
        assert log.owed == [("b", 0), ("a", 1), ("b", 1)]
        await log.append(result("b", 0))
    run = read_run(tmp_path / "run")
    assert not run.torn
    assert set(run.records) == {("a", 0), ("b", 0)}


async def test_a_torn_tail_of_zeros_is_tolerated(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run") as log:
        await log.append(result("a", 0))
    with (tmp_path / "run/results.jsonl").open("ab") as file:
        file.write(bytes(100_000))
    assert read_run(tmp_path / "run").torn
    async with log_of(tmp_path / "run", resume=True) as log:
        await log.append(result("b", 0))
    assert set(read_run(tmp_path / "run").records) == {("a", 0), ("b", 0)}


async def test_damage_in_the_middle_is_named_by_its_line(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run") as log:
        await log.append(result("a", 0))
        await log.append(result("b", 0))
    results = tmp_path / "run/results.jsonl"
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(lines[0] + b"{broken\n" + lines[2])
    with pytest.raises(RunLogError, match="line 2 is damaged"):
        read_run(tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b'{"kind":"hea', b"nonsense\n"])
def test_a_file_without_a_header_is_no_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results.jsonl").write_bytes(content)
    with pytest.raises(RunLogError, match="holds no run"):
        read_run(tmp_path)


def test_a_directory_without_results_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunLogError, match="no run directory"):
        read_run(tmp_path)


async def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run"):
        pass
    results = tmp_path / "run/results.jsonl"
    line = orjson.loads(results.read_bytes())
    results.write_bytes(orjson.dumps(line | {"schema_version": 99, "new_field": 1}) + b"\n")
    with pytest.raises(RunLogError, match=r"format 99.*Update hermes_rl"):
        read_run(tmp_path / "run")


async def test_a_full_disk_stops_the_run_and_half_counts_nothing(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run") as log:
        await log.append(result("a", 0))
        size = (tmp_path / "run/results.jsonl").stat().st_size
        with (
            file_size_limit(size + 100),
            pytest.raises(RunLogError, match=r"File too large.*--resume"),
        ):
            await log.append(errored("b"))
        assert (tmp_path / "run/results.jsonl").stat().st_size == size
        assert ("b", 0) not in log.records
        await log.append(result("b", 0))
    run = read_run(tmp_path / "run")
    assert not run.torn
    assert set(run.records) == {("a", 0), ("b", 0)}


async def test_a_full_disk_leaves_the_old_metrics(tmp_path: Path) -> None:
    write_whole(tmp_path / "metrics.json", [b"old"])
    with file_size_limit(100), pytest.raises(RunLogError):
        write_whole(tmp_path / "metrics.json", [b"x" * 90, b"y" * 90])
    assert (tmp_path / "metrics.json").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["metrics.json"]


def test_two_processes_cannot_write_one_run(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from hermes_rl.runlog.files import RunLock\n"
        "RunLock(pathlib.Path(sys.argv[1]))"
    )
    with RunLock(tmp_path):
        other = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
        )
        assert other.returncode != 0
        assert f"another process (pid {os.getpid()})" in other.stderr
    again = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert again.returncode == 0


def test_the_lock_of_a_dead_process_does_not_hold(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("1\n")
    RunLock(tmp_path).release()


async def test_cancelling_an_append_does_not_tear_it(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run") as log:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await log.append(result("a", 0))
    assert set(read_run(tmp_path / "run").records) == {("a", 0)}


async def test_metrics_and_samples_have_atropos_layout(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run") as log:
        await log.append(result("a", 0))
        await log.append(result("b", 0, reward=0.0))
        await log.summarise(wall_s=2.5)
    metrics = read_metrics(tmp_path / "run")
    assert metrics is not None
    assert metrics["config_general"] == {
        "model_name": "m",
        "total_evaluation_time_seconds": "2.5",
        "generation_parameters": {"temperature": 1.0, "max_agent_turns": 30},
    }
    flat = metrics["results"]["all"]
    assert metrics["results"]["atropos|demo_eval|0"] == flat
    assert all(isinstance(value, int | float) for value in flat.values())
    assert (flat["eval/pass_rate"], flat["eval/total_tasks"]) == (0.5, 2)
    assert flat["eval/pass_rate_category_c"] == 0.5
    assert metrics["hermes_rl"]["complete"] is False
    samples = [
        orjson.loads(line) for line in (tmp_path / "run/samples.jsonl").read_bytes().splitlines()
    ]
    assert [(s["task_id"], s["score"], s["passed"]) for s in samples] == [
        ("a", 1.0, True),
        ("b", 0.0, False),
    ]
    assert (tmp_path / "run" / samples[0]["transcript"]).is_file()


async def test_a_run_without_rollouts_can_be_discarded_and_one_with_some_cannot(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    async with log_of(run) as log:
        await log.summarise(wall_s=0.0)
        assert await log.discard()
    assert not run.exists()
    run.mkdir()
    (run / "notes").write_text("mine")
    async with log_of(run) as log:
        assert await log.discard()
    assert [path.name for path in run.iterdir()] == ["notes"]
    async with log_of(run) as log:
        await log.append(result("a", 0))
        assert not await log.discard()
    async with log_of(run, resume=True) as log:
        assert not await log.discard()
    assert set(read_run(run).records) == {("a", 0)}


async def test_wall_time_adds_up_over_resumed_runs(tmp_path: Path) -> None:
    async with log_of(tmp_path / "run") as log:
        await log.summarise(wall_s=2.0)
    async with log_of(tmp_path / "run", resume=True) as log:
        await log.summarise(wall_s=3.0)
    metrics = read_metrics(tmp_path / "run")
    assert metrics is not None
    assert metrics["config_general"]["total_evaluation_time_seconds"] == "5.0"


async def test_hundreds_of_appends_at_once_stay_whole(tmp_path: Path) -> None:
    run = header(task_ids=[f"t{i}" for i in range(150)], attempts=1)
    async with log_of(tmp_path / "run", run) as log, anyio.create_task_group() as group:
        for task_id in run.task_ids:
            group.start_soon(log.append, result(task_id, text="x" * 5000))
    assert len(read_run(tmp_path / "run").records) == 150


def test_appending_after_close_needs_reopening(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "lines")
    file.append(b"one\n")
    file.close()
    file = AppendFile(tmp_path / "lines")
    file.append(b"two\n")
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"one\ntwo\n"


async def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLogError, match=r"cannot be made: .*"):
        async with log_of(tmp_path / "file/run"):
            pass
