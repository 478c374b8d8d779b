"""A benchmark of generated tasks as a user runs it: many at once, one Ctrl-C, resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import orjson

from hermes_rl.runlog.reader import RecordedRun, read_run
from hermes_rl.testing.model_server import serve_model

from .docker_boxes import docker
from .evaluate_process import environment, outcomes
from .generated_tasks import (
    ENVIRONMENTS,
    built,
    category_of,
    image_tags,
    is_solved,
    remove_images,
    work,
    write_tasks,
)


async def interrupt_and_resume(where: Path, count: int, *, timeout_s: float) -> dict[str, float]:
    """Run ``count`` tasks at once, interrupt in the middle, resume; check everything.

    Returns:
        Seconds until the interrupt, of the interrupt, and of the resumed rest.
    """
    ids = write_tasks(where / "tasks", count, salt=uuid.uuid4().hex)
    tags = image_tags(where / "tasks")
    assert len(tags) == min(ENVIRONMENTS, count)
    try:
        async with _tagged() as names:
            seconds = await _run(where, count, timeout_s)
        assert await anyio.to_thread.run_sync(built, tags) == tags
        # Once each, however many wanted them, before the interrupt and after.
        assert sorted(name for name in names if name in tags) == sorted(tags)
    finally:
        await anyio.to_thread.run_sync(remove_images, tags)
    _check_totals(read_run(where / "run"), where / "run", ids)
    return seconds


async def _run(where: Path, count: int, timeout_s: float) -> dict[str, float]:
    async with serve_model(work) as server:
        settings = {
            "--env.dataset_name": str(where / "tasks"),
            "--env.data_dir_to_save_evals": "run",
            "--env.terminal_backend": "docker",
            "--env.max_eval_workers": str(count),
            "--openai.base_url": server.base_url,
            "--openai.model_name": "worker",
            "--openai.api_key": "none",
        }
        flags = [word for pair in settings.items() for word in pair]
        began_s = time.monotonic()
        process = await _start(where, "evaluate", "terminal-bench-2", *flags)
        with anyio.fail_after(timeout_s):
            await _until_recorded(process, where / "run", count // 3)
        interrupted_s = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        code, text = await _end(process, timeout_s=60)
        assert code == 130, text
        assert "Traceback" not in text, text
        ended_s = time.monotonic()
        assert await anyio.to_thread.run_sync(_containers_of, process.pid) == []
        done = len(read_run(where / "run").records)
        assert count // 3 <= done < count
        process = await _start(where, "evaluate", "--resume", "run", "--openai.api_key", "none")
        code, text = await _end(process, timeout_s=timeout_s)
        assert code == 0, text
        assert await anyio.to_thread.run_sync(_containers_of, process.pid) == []
    return {
        "until the interrupt": interrupted_s - began_s,
        "of the interrupt": ended_s - interrupted_s,
        "of the rest": time.monotonic() - ended_s,
    }


async def _start(where: Path, *words: str) -> anyio.abc.Process:
    return await anyio.open_process(
        [sys.executable, "-m", "hermes_rl", *words],
        cwd=where,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


async def _end(process: anyio.abc.Process, *, timeout_s: float) -> tuple[int, str]:
    assert process.stdout is not None
    text = b""
    try:
        with anyio.fail_after(timeout_s):
            async for piece in process.stdout:
                text += piece
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        await process.aclose()
    return code, text.decode()


async def _until_recorded(process: anyio.abc.Process, run: Path, count: int) -> None:
    while not (run / "results.jsonl").exists() or len(read_run(run).records) < count:
        assert process.returncode is None, await _end(process, timeout_s=10)
        await anyio.sleep(0.1)


def _containers_of(pid: int) -> list[str]:
    lines = docker("ps", "-a", "--filter", "label=hermes.owner", "--format", "{{.ID}} {{.Labels}}")
    return [line for line in lines.splitlines() if f":{pid}:" in line]


@asynccontextmanager
async def _tagged() -> AsyncIterator[list[str]]:
    """Collect the names that the daemon gives to images meanwhile: one for each build."""
    names: list[str] = []
    words = ["--filter", "type=image", "--filter", "event=tag"]
    words += ["--format", "{{.Actor.Attributes.name}}"]
    process = await anyio.open_process(["docker", "events", *words])
    try:
        yield names
        await anyio.sleep(0.5)
    finally:
        process.terminate()
        text = b"".join([piece async for piece in process.stdout]) if process.stdout else b""
        names += text.decode().split()
        await process.aclose()


def _check_totals(recorded: RecordedRun, run: Path, ids: list[str]) -> None:
    expected = {
        (name, 0): ("finished", float(is_solved(number))) for number, name in enumerate(ids)
    }
    assert outcomes(recorded) == expected
    assert {record.failure for record in recorded.records.values()} == {None}
    assert [flags for r in recorded.records.values() if (flags := r.flags)] == []
    metrics = orjson.loads((run / "metrics.json").read_bytes())
    totals = metrics["results"]["all"]
    passed = sum(is_solved(number) for number in range(len(ids)))
    assert totals["eval/passed_rollouts"] == passed
    assert totals["eval/total_tasks"] == len(ids)
    assert totals["eval/errored_rollouts"] == 0
    by_category = metrics["hermes_rl"]["breakdowns"]["category"]
    wanted = Counter(category_of(number) for number in range(len(ids)))
    assert {name: score["rollouts"] for name, score in by_category.items()} == wanted
    samples = (run / "samples.jsonl").read_bytes().splitlines()
    assert {orjson.loads(line)["task_id"] for line in samples} == set(ids)
