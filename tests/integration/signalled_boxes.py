"""Signals to the command while all its Docker sandboxes are at work: its end, and what is left."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_rl.testing.model_server import Answer, SeenRequest, call_tool, serve_model

from .docker_boxes import docker
from .evaluate_process import end, interrupt, run, start
from .mixed_work import work_in

TASKS = f"{Path(__file__).with_name('busy_tasks.py')}:BusyTasks"
GRACE_S = 15.0
"""Promised from the first signal to the end of the process."""
SWEPT_ONLY = {"created"}
"""No stream was attached yet: nothing but a sweep removes them."""


@dataclass(slots=True, frozen=True)
class Ending:
    """How the command ended after its signals."""

    code: int
    stderr: str
    ended_s: float
    """From the last signal to the end of the process."""
    gone_s: float
    """From the end of the process until no started sandbox was left."""
    left: Counter[str]
    """States of what was there when the process had ended."""


async def signal_boxes(
    where: Path, count: int, signals: Sequence[signal.Signals], *, limit_s: float
) -> Ending:
    """Run ``count`` sandboxes of mixed calls, send the signals, wait until nothing is left.

    Args:
        limit_s: For the sandboxes to be at work, and for what is left to go.
    """
    calls = work_in("box")
    asked = 0

    def next_call(request: SeenRequest) -> Answer:
        nonlocal asked
        asked += 1
        return call_tool(*calls[request.raw.count(b'"role":"assistant"') % len(calls)][:2])

    async with serve_model(next_call) as server:
        flags = {
            "--env.dataset_name": str(count),
            "--env.terminal_backend": "docker",
            "--env.max_eval_workers": str(count),
            "--env.max_running_sandboxes": str(count),
            "--env.max_agent_turns": "100000",
            "--env.data_dir_to_save_evals": "run",
            "--openai.base_url": server.base_url,
            "--openai.model_name": "mixed",
            "--openai.api_key": "none",
        }
        words = [word for pair in flags.items() for word in pair]
        process = start(where, "evaluate", TASKS, *words)
        try:
            with anyio.fail_after(limit_s):
                while asked < 4 * count or len(await _states(process.pid)) < count:
                    if process.poll() is not None:
                        raise AssertionError(process.communicate())
                    await anyio.sleep(0.1)
            for number in signals:
                sent_s = time.monotonic()
                interrupt(process, number)
                await anyio.sleep(0.3)
            code, _, stderr = await anyio.to_thread.run_sync(end, process, 4 * GRACE_S)
            ended_s = time.monotonic()
        finally:
            process.kill()
            process.wait()
    left = await _states(process.pid)
    with anyio.fail_after(limit_s):
        while {*(await _states(process.pid)).values()} - SWEPT_ONLY:
            await anyio.sleep(0.05)
    gone_s = time.monotonic()
    await anyio.to_thread.run_sync(run, where, "sandboxes", "clean")
    assert await _states(process.pid) == {}
    return Ending(code, stderr, ended_s - sent_s, gone_s - ended_s, Counter(left.values()))


async def _states(pid: int) -> dict[str, str]:
    """Sandboxes that a process made and that the daemon knows: short id -> state."""
    form = "{{.ID}} {{.State}} {{.Labels}}"
    words = ("ps", "-a", "--filter", "label=hermes.owner", "--format", form)
    lines = (await anyio.to_thread.run_sync(docker, *words)).splitlines()
    rows = [line.split(" ", 2) for line in lines if f":{pid}:" in line]
    return {row[0]: row[1] for row in rows}
