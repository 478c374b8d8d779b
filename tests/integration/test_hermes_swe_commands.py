"""``hermes-swe`` by evaluate, process and serve, over HTTP, from json, parquet and a directory."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import pytest_asyncio

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")
pytest.importorskip("datasets", reason="needs hermes_rl[datasets]")

import pyarrow as pa
import pyarrow.parquet as pq

from hermes_rl.envs.hermes_swe_env.task_set import swe_task
from hermes_rl.runlog.reader import read_run
from hermes_rl.testing.model_server import (
    Answer,
    ModelServer,
    SeenRequest,
    call_tool,
    say,
    serve_model,
)

from .evaluate_process import environment
from .serve_process import serving_process
from .swe_rows import PYTHON
from .trajectory_server import Trainer, trajectory_server

pytestmark = pytest.mark.timeout(240)

KINDS = ("right", "wrong", "elsewhere", "nothing")
REWARDS = {"right": 1.0, "wrong": 0.1, "elsewhere": 0.1, "nothing": 0.0}


def row_of(kind: str) -> dict[str, Any]:
    """Return a row whose prompt says how the model of these tests answers it."""
    prompt = PYTHON.row["prompt"].replace("The text", f"Kind {kind}. The text")
    return PYTHON.row | {"task_id": f"Python/{kind}", "prompt": prompt}


ROWS = [row_of(kind) for kind in KINDS]


def command_for(kind: str) -> str:
    right = str(swe_task(PYTHON.row, 0).reference)
    text = shlex.quote(PYTHON.wrong if kind == "wrong" else right)
    name = {"elsewhere": "~/mine.py", "nothing": "/dev/null"}.get(kind, "~/solution.py")
    return f"printf %s {text} > {name}"


def coder(request: SeenRequest) -> Answer:
    """Write what the prompt asks for in one call, then say so."""
    if request.messages[-1]["role"] == "tool":
        return say("It is written.")
    prompt = request.messages[-1]["content"]
    (kind,) = [kind for kind in KINDS if f"Kind {kind}." in prompt]
    return call_tool("terminal", {"command": command_for(kind)})


@pytest_asyncio.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with serve_model(coder) as server:
        yield server


def words_for(model: ModelServer, dataset: Path) -> list[str]:
    return [
        "hermes-swe",
        *("--env.dataset_name", str(dataset), "--env.terminal_backend", "local"),
        *("--openai.server_type", "openai", "--openai.base_url", model.base_url),
        *("--openai.model_name", "coder", "--env.enabled_toolsets", "terminal,file"),
    ]


async def hermes(folder: Path, command: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    done = await anyio.run_process(
        [sys.executable, "-m", "hermes_rl", command, *words],
        cwd=folder,
        env=environment(WANDB_MODE="disabled", HF_HUB_OFFLINE="1"),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    return done


def as_json(folder: Path) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps(ROWS))
    return path


def as_parquet(folder: Path) -> Path:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


def as_directory(folder: Path) -> Path:
    path = folder / "rows"
    path.mkdir()
    for name, rows in (("train", ROWS), ("test", ROWS[:1])):
        lines = [json.dumps(row) for row in rows]
        (path / f"{name}.jsonl").write_text("\n".join(lines))
    return path


async def test_evaluate_scores_each_task_by_its_hidden_tests(
    model: ModelServer, tmp_path: Path
) -> None:
    words = words_for(model, as_json(tmp_path))
    await hermes(tmp_path, "evaluate", *words, "--env.data_dir_to_save_evals", "run")
    run = read_run(tmp_path / "run")
    assert {r.task_id: r.reward for r in run.records.values()} == {
        f"Python-{kind}": REWARDS[kind] for kind in KINDS
    }
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["results"]["all"]["eval/pass_rate"] == 0.25


async def test_evaluate_of_the_class_keeps_every_tenth_task_and_writes_metrics(
    model: ModelServer, tmp_path: Path
) -> None:
    script = Path(sys.modules[swe_task.__module__].__file__ or "").with_name("hermes_swe_env.py")
    done = await anyio.run_process(
        [
            *(sys.executable, str(script), "evaluate"),
            *words_for(model, as_json(tmp_path))[1:],
            *("--env.data_dir_to_save_evals", "run"),
        ],
        cwd=tmp_path,
        env=environment(WANDB_MODE="disabled", HF_HUB_OFFLINE="1"),
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    (rollout,) = read_run(tmp_path / "run").records.values()
    assert (rollout.task_id, rollout.reward) == ("Python-right", 1.0)


async def test_process_writes_a_scored_conversation_per_task(
    model: ModelServer, tmp_path: Path
) -> None:
    words = words_for(model, as_parquet(tmp_path))
    await hermes(tmp_path, "process", *words, "--env.total_steps", "6")
    lines = (tmp_path / "data/hermes-swe.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 6
    for row in rows:
        (messages,), (score,) = row["messages"], row["scores"]
        (kind,) = [kind for kind in KINDS if f"Kind {kind}." in messages[0]["content"]]
        assert score == REWARDS[kind]
        assert messages[-1]["content"] == "It is written."
    assert (tmp_path / "data/hermes-swe.html").exists()


async def test_serve_hands_groups_with_their_scores_to_a_trainer(
    model: ModelServer, tmp_path: Path
) -> None:
    words = (
        *words_for(model, as_directory(tmp_path)),
        *("--env.group_size", "2", "--env.total_steps", "1"),
        *("--env.include_messages", "true", "--env.ensure_scores_are_not_same", "false"),
    )
    async with trajectory_server(tmp_path) as server:
        trainer = Trainer(server.url, batch_size=8)
        await trainer.register(num_steps=1)
        there = ("--env.rollout_server_url", server.url)
        async with serving_process(tmp_path, *words, *there) as serve:
            with anyio.move_on_after(120):
                while not trainer.batches and serve.is_running:
                    await trainer.pull()
                    await anyio.sleep(0.1)
            assert trainer.batches, serve.output[-4000:]
            assert await serve.end(60) == 0, serve.output[-4000:]
        await trainer.aclose()
    groups = trainer.batches[0]
    assert sum(len(group["scores"]) for group in groups) == 8
    for group in groups:
        (kind,) = [kind for kind in KINDS if f"Kind {kind}." in group["messages"][0][0]["content"]]
        # The first task is kept for the evaluation.
        assert kind != "right"
        assert group["scores"] == [REWARDS[kind]] * 2
