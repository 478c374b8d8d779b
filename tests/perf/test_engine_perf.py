"""The engine's own CPU per turn: the whole stack with a tool that does nothing.

200 rollouts of ten tool calls each, 32 at once, as in the comparison of other engines. CPU of this
process only (all its threads): the model server runs in another. The tool is ``terminal`` through
the real dispatcher on an in-memory sandbox; every call's success is asserted. Divided by the turns
with a tool call, so that the last turn and all set-up are overhead and count too.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.context import ToolContext
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.testing.fake_sandbox import FakeBackend
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.types import AgentResult
from tests.proof import Proof

PROOF = "perf"

pytestmark = [pytest.mark.perf, pytest.mark.timeout(300)]

ROLLOUTS = 200
CALLS = 10
WORKERS = 32
WARM_UP = 32
ROUNDS = 3
"""The median of so many is taken."""
MAX_IN_PROCESS_MS = 0.3
MAX_OVER_HTTP_MS = 0.5


async def all_calls_succeeded(result: AgentResult, ctx: ToolContext) -> float:
    answers = [m["content"] for m in result.messages if m["role"] == "tool"]
    return float(len(answers) == CALLS and all('"exit_code":0' in text for text in answers))


async def cpu_ms_per_turn(engine: RolloutEngine, rollouts: int) -> float:
    tasks = [FakeTask(id=f"t{i}", reward=all_calls_succeeded) for i in range(rollouts)]
    started_s = time.process_time()
    async with engine.run(tasks, max_workers=WORKERS) as results:
        scores = [result.score async for result in results]
    used_s = time.process_time() - started_s
    assert scores == [1.0] * rollouts
    return used_s * 1000 / (rollouts * CALLS)


async def measure(engine: RolloutEngine) -> list[float]:
    async with engine:
        await cpu_ms_per_turn(engine, WARM_UP)
        return sorted([await cpu_ms_per_turn(engine, ROLLOUTS) for _ in range(ROUNDS)])


@contextmanager
def server_in_its_own_process() -> Iterator[str]:
    program = Path(__file__).with_name("scripted_server.py")
    with subprocess.Popen(
        [sys.executable, str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()
            process.wait(timeout=20)


def _row(what: str, times_ms: list[float], limit_ms: float) -> str:
    rounds = ", ".join(f"{each:.3f}" for each in times_ms)
    return f"{f'CPU per turn, {what}':<44} {f'{rounds} ms':>36}  <= {limit_ms} ms, the median"


async def test_cpu_per_turn_in_process(proof: Proof) -> None:
    model = ScriptedModel(replay([call("terminal", {"command": "true"})] * CALLS))
    times_ms = await measure(RolloutEngine(EnvConfig(), model=model, backend=FakeBackend()))
    proof(_row("model in process", times_ms, MAX_IN_PROCESS_MS))
    assert times_ms[ROUNDS // 2] <= MAX_IN_PROCESS_MS


async def test_cpu_per_turn_over_loopback_http(proof: Proof) -> None:
    with server_in_its_own_process() as base_url:
        server = ServerConfig(base_url=base_url, model_name="scripted")
        times_ms = await measure(RolloutEngine(EnvConfig(), [server], backend=FakeBackend()))
    proof(_row("model over loopback HTTP", times_ms, MAX_OVER_HTTP_MS))
    assert times_ms[ROUNDS // 2] <= MAX_OVER_HTTP_MS
