import resource
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import ConfigError, ModelUnauthorized, RunLogError, TaskError
from hermes_rl.evaluation import Evaluation, Progress, evaluate
from hermes_rl.evaluation_plan import model_label, new_run_directory, run_header
from hermes_rl.model.protocol import Sampling
from hermes_rl.model.scripted import ScriptedModel, call, replay, say
from hermes_rl.runlog.reader import read_metrics, read_run
from hermes_rl.runlog.writer import RunLog
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.task_selection import load_selection, select
from hermes_rl.testing.fake_sandbox import FakeBackend
from hermes_rl.testing.loop_monitor import loop_monitor
from hermes_rl.types import AgentResult, Completion, JSONObject, Message

CONFIG = EnvConfig(enabled_toolsets=["terminal"], rollout_retries=0, max_eval_workers=4)


@dataclass
class Writes:
    """Passes if the agent wrote ``note`` itself; a fake sandbox has no other inhabitants."""

    id: str
    prompt: str = "Say yes"
    metadata: dict[str, Any] = field(default_factory=dict)
    sandbox: SandboxSpec = field(default_factory=SandboxSpec)

    async def reward(self, result: AgentResult, ctx: Any) -> float:
        return float(result.messages[-1]["content"] == "yes")


@dataclass
class Breaks(Writes):
    async def reward(self, result: AgentResult, ctx: Any) -> float:
        raise RuntimeError("broken reward")


class Tasks:
    name = "demo"
    version = 3

    def __init__(self, *tasks: Writes) -> None:
        self.tasks = tasks

    async def load(self) -> Sequence[Writes]:
        return self.tasks


def ids(count: int) -> list[Writes]:
    return [Writes(f"t{number}") for number in range(count)]


class Gate:
    """A model whose answers wait until the test opens the gate, ``free`` of them excepted."""

    name = "gate"
    context_tokens: int | None = None

    def __init__(self, free: int) -> None:
        self.free = free
        self.waiting = 0
        self.all_waiting = anyio.Event()
        self.expected = 0

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator["Gate"]:
        yield self

    sequences: Sequence[Any] = ()

    async def complete(self, messages: Sequence[Message]) -> Completion:
        if self.free > 0:
            self.free -= 1
            return say("yes")
        self.waiting += 1
        if self.waiting == self.expected:
            self.all_waiting.set()
        await anyio.sleep_forever()
        raise AssertionError


async def run_evaluation(
    directory: Path,
    tasks: Sequence[Writes],
    model: Any,
    *,
    config: EnvConfig = CONFIG,
    resume: bool = False,
    heard: list[Progress] | None = None,
    backend: FakeBackend | None = None,
) -> Evaluation:
    selection = await load_selection(Tasks(*tasks), config)
    header = run_header(
        selection, config, [ServerConfig()], models=[model.name], tools=["terminal"]
    )
    log = RunLog(directory, header, {"tasks": "demo"}, resume=resume)
    async with RolloutEngine(config, model=model, backend=backend or FakeBackend()) as engine, log:
        evaluation = Evaluation(
            selection,
            engine,
            log,
            workers=config.max_eval_workers,
            on_progress=None if heard is None else heard.append,
        )
        await evaluation.run()
    return evaluation


def says(text: str) -> ScriptedModel:
    return ScriptedModel(replay([], end=text))


async def test_every_task_is_run_as_often_as_asked_and_scored(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"attempts": 3})
    heard: list[Progress] = []
    evaluation = await run_evaluation(
        tmp_path / "run", ids(5), says("yes"), config=config, heard=heard
    )
    assert evaluation.summary is not None
    assert evaluation.summary.complete
    assert evaluation.summary.headline.passed == 15
    assert set(read_run(tmp_path / "run").records) == {
        (f"t{n}", attempt) for n in range(5) for attempt in range(3)
    }
    assert (heard[0].done, heard[0].planned) == (0, 15)
    assert (heard[-1].done, heard[-1].passed, heard[-1].running) == (15, 15, 0)
    assert [progress.done for progress in heard] == list(range(16))


async def test_a_failing_rollout_is_recorded_and_disturbs_no_other(tmp_path: Path) -> None:
    evaluation = await run_evaluation(tmp_path / "run", [*ids(3), Breaks("bad")], says("yes"))
    summary = evaluation.summary
    assert summary is not None
    assert summary.headline.pass_rate == 0.75
    assert summary.without_errors.pass_rate == 1.0
    record = read_run(tmp_path / "run").records["bad", 0]
    assert record.status == "errored"
    assert record.failure is not None
    assert "broken reward" in record.failure.message


async def test_a_task_that_the_backend_cannot_run_is_skipped_by_name_and_reason(
    tmp_path: Path,
) -> None:
    needs_image = Writes("img", sandbox=SandboxSpec(image="x"))
    evaluation = await run_evaluation(tmp_path / "run", [*ids(1), needs_image], says("yes"))
    summary = evaluation.summary
    assert summary is not None
    assert summary.headline.rollouts == 1
    ((reason, count),) = summary.skipped.items()
    assert count == 1
    assert "images" in reason


async def test_cancelling_keeps_what_finished_and_leaves_no_trace_of_the_rest(
    tmp_path: Path,
) -> None:
    gate = Gate(free=3)
    gate.expected = 4
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel_when_stuck() -> None:
                await gate.all_waiting.wait()
                scope.cancel()

            group.start_soon(cancel_when_stuck)
            await run_evaluation(tmp_path / "run", ids(20), gate)
    assert scope.cancelled_caught
    assert len(read_run(tmp_path / "run").records) == 3
    metrics = read_metrics(tmp_path / "run")
    assert metrics is not None
    assert metrics["hermes_rl"]["complete"] is False
    assert metrics["hermes_rl"]["recorded"] == 3


async def test_a_resumed_run_ends_with_the_totals_of_an_undisturbed_one(tmp_path: Path) -> None:
    backend = FakeBackend()
    gate = Gate(free=7)
    gate.expected = 4
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:

            async def cancel_when_stuck() -> None:
                await gate.all_waiting.wait()
                scope.cancel()

            group.start_soon(cancel_when_stuck)
            await run_evaluation(tmp_path / "run", ids(20), gate)
    finisher = says("yes")
    finisher.name = "gate"
    resumed = await run_evaluation(
        tmp_path / "run", ids(20), finisher, resume=True, backend=backend
    )
    assert len(backend.created) == 13
    undisturbed = await run_evaluation(tmp_path / "other", ids(20), finisher)
    assert resumed.summary is not None
    assert undisturbed.summary is not None
    assert resumed.summary.headline == undisturbed.summary.headline
    assert resumed.summary.complete


async def test_errored_rollouts_are_run_again_on_resume(tmp_path: Path) -> None:
    await run_evaluation(tmp_path / "run", [Breaks("a"), Writes("b")], says("yes"))
    heard: list[Progress] = []
    resumed = await run_evaluation(
        tmp_path / "run", [Writes("a"), Writes("b")], says("yes"), resume=True, heard=heard
    )
    assert resumed.summary is not None
    assert resumed.summary.errored == 0
    assert resumed.summary.headline.passed == 2
    assert [(p.done, p.planned) for p in heard] == [(1, 2), (2, 2)]


async def test_a_finished_run_resumes_to_the_same_numbers_without_work(tmp_path: Path) -> None:
    first = await run_evaluation(tmp_path / "run", ids(3), says("yes"))
    backend = FakeBackend()
    again = await run_evaluation(
        tmp_path / "run", ids(3), says("yes"), resume=True, backend=backend
    )
    assert backend.created == []
    assert again.summary == first.summary


class Refused:
    """A model whose key is refused from the third call on."""

    name = "refused"
    context_tokens: int | None = None
    sequences: Sequence[Any] = ()

    def __init__(self) -> None:
        self.calls = 0

    @asynccontextmanager
    async def session(self, **_: object) -> AsyncIterator["Refused"]:
        yield self

    async def complete(self, messages: Sequence[Message]) -> Completion:
        self.calls += 1
        if self.calls > 2:
            raise ModelUnauthorized("401: wrong key", status=401)
        await anyio.lowlevel.checkpoint()
        return say("yes")


async def test_a_refused_key_stops_the_run_and_keeps_what_finished(tmp_path: Path) -> None:
    model = Refused()
    config = CONFIG.model_copy(update={"max_eval_workers": 1})
    with pytest.raises(ModelUnauthorized, match="wrong key"):
        await run_evaluation(tmp_path / "run", ids(50), model, config=config)
    assert model.calls == 3
    assert len(read_run(tmp_path / "run").records) == 2
    metrics = read_metrics(tmp_path / "run")
    assert metrics is not None
    assert metrics["hermes_rl"]["recorded"] == 2


async def test_a_full_disk_stops_the_run_with_one_clear_error(tmp_path: Path) -> None:
    selection = await load_selection(Tasks(*ids(50)), CONFIG)
    header = run_header(selection, CONFIG, [ServerConfig()], models=["m"], tools=["terminal"])
    log = RunLog(tmp_path / "run", header, {})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    async with RolloutEngine(CONFIG, model=says("yes"), backend=FakeBackend()) as engine, log:
        size = (tmp_path / "run/results.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 2000, hard))
        try:
            with pytest.raises(RunLogError, match="File too large"):
                await Evaluation(selection, engine, log, workers=4).run()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, ignored)
    run = read_run(tmp_path / "run")
    assert not run.torn
    assert 0 < len(run.records) < 50
    assert all(record.passed for record in run.records.values())


async def test_recording_long_conversations_never_blocks_the_loop(tmp_path: Path) -> None:
    turns = [call("terminal", {"command": "ls"}, text="x" * 100_000)] * 5
    config = CONFIG.model_copy(update={"max_eval_workers": 32})
    model = ScriptedModel(replay(turns, end="yes"))
    with loop_monitor(spikes=1):
        await run_evaluation(tmp_path / "run", ids(64), model, config=config)


async def test_the_transcript_shows_what_was_called(tmp_path: Path) -> None:
    model = ScriptedModel(replay([call("terminal", {"command": "echo hi"})], end="yes"))
    await run_evaluation(tmp_path / "run", ids(1), model)
    text = (tmp_path / "run/transcripts/t0/0.jsonl").read_text()
    assert "echo hi" in text
    assert "exit_code" in text


def chosen(task_filter: list[str] | None, skip: list[str] | None = None) -> list[str]:
    tasks = [
        Writes("fix-git", metadata={"category": "git", "tags": ["a", "b"]}),
        Writes("fix-ocaml", metadata={"category": "gc", "difficulty": 3}),
        Writes("chess", metadata={"category": "games"}),
    ]
    return [task.id for task in select(tasks, task_filter=task_filter, skip_tasks=skip)]


@pytest.mark.parametrize(
    ("task_filter", "skip", "expected"),
    [
        (None, None, ["fix-git", "fix-ocaml", "chess"]),
        (["chess", "fix-git"], None, ["fix-git", "chess"]),
        (["fix-*"], None, ["fix-git", "fix-ocaml"]),
        (["fix-*"], ["*git"], ["fix-ocaml"]),
        (["category=g*"], None, ["fix-git", "fix-ocaml", "chess"]),
        (["category=g*"], ["category=games"], ["fix-git", "fix-ocaml"]),
        (["tags=b"], None, ["fix-git"]),
        (["difficulty=3"], None, ["fix-ocaml"]),
        (None, ["no-such-task"], ["fix-git", "fix-ocaml", "chess"]),
        (None, ["*"], []),
    ],
)
def test_tasks_are_chosen_by_id_glob_or_metadata(
    task_filter: list[str] | None, skip: list[str] | None, expected: list[str]
) -> None:
    assert chosen(task_filter, skip) == expected


def test_a_filter_that_fits_nothing_names_the_nearest_task() -> None:
    with pytest.raises(ConfigError, match=r"'fix-gti' fits none of 3 tasks.*fix-git"):
        chosen(["chess", "fix-gti"])


async def test_two_tasks_with_one_id_are_refused() -> None:
    with pytest.raises(TaskError, match="twice: t0"):
        await load_selection(Tasks(*ids(2), *ids(1)), CONFIG)


async def test_a_load_that_fails_says_where() -> None:
    class Broken(Tasks):
        async def load(self) -> Sequence[Writes]:
            raise KeyError("column")

    with pytest.raises(TaskError, match=r"load\(\) of demo failed: KeyError.*test_evaluation.py:"):
        await load_selection(Broken(), CONFIG)


async def test_what_is_no_task_is_refused_by_what_it_lacks() -> None:
    with pytest.raises(TaskError, match="it has no prompt"):
        await load_selection(Tasks(SimpleNamespace(id="x")), CONFIG)  # type: ignore[arg-type]


async def test_the_header_says_what_was_planned() -> None:
    tasks = [Writes("a", metadata={"digest": "d1"}), Writes("b")]
    selection = await load_selection(Tasks(*tasks), CONFIG)
    header = run_header(
        selection, CONFIG, [ServerConfig(model_name="m")], models=["m"], tools={"z", "a"}
    )
    assert (header.task_set, header.task_set_version) == ("demo", "3")
    assert header.task_ids == ["a", "b"]
    assert header.task_digests == {"a": "d1"}
    assert header.tools == ["a", "z"]
    assert header.score_config["openai.0.model_name"] == "m"


@pytest.mark.parametrize(
    ("server", "label"),
    [
        (ServerConfig(server_type="oracle", model_name="x"), "oracle"),
        (ServerConfig(model_name="a/b"), "a/b"),
        (ServerConfig(server_type="local"), "gemma3-270m"),
        (ServerConfig(server_type="local", path="/models/q.gguf"), "q.gguf"),
        (ServerConfig(), "openai"),
    ],
)
def test_models_have_names_for_reports(server: ServerConfig, label: str) -> None:
    assert model_label(server) == label


async def test_the_embedded_form_evaluates_and_resumes_in_one_call(tmp_path: Path) -> None:
    async with RolloutEngine(CONFIG, model=says("yes"), backend=FakeBackend()) as engine:
        for resume in (False, True):
            summary = await evaluate(
                Tasks(*ids(3)),
                engine,
                env=CONFIG,
                run_dir=tmp_path / "run",
                model_names=["mine"],
                resume=resume,
            )
            assert summary.headline.passed == 3
        with pytest.raises(RunLogError, match="already holds a run"):
            await evaluate(Tasks(*ids(3)), engine, env=CONFIG, run_dir=tmp_path / "run")
    assert read_run(tmp_path / "run").header.models == ["mine"]


def test_a_new_run_never_lands_in_an_old_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    now = datetime(2026, 1, 2, 3, 4, 5)
    first = new_run_directory(CONFIG, "demo", now)
    assert first == Path("runs/demo-20260102-030405")
    first.mkdir(parents=True)
    assert new_run_directory(CONFIG, "demo", now) == Path("runs/demo-20260102-030405-2")
    chosen_one = CONFIG.model_copy(update={"data_dir_to_save_evals": "here"})
    assert new_run_directory(chosen_one, "demo", now) == Path("here")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("terminal-bench-2", "terminal-bench-2"),
        ("a/b c\n", "a-b-c"),
        ("../..", "tasks"),
        ("été", "été"),
    ],
)
def test_a_run_directory_is_one_folder_whatever_the_task_sets_name(name: str, folder: str) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5)
    path = new_run_directory(EnvConfig(), name, now)
    assert path == Path("runs") / f"{folder}-20260102-030405"
