"""Two hundred rollouts that call a tool of hermes-agent which sleeps."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import orjson
import pytest

from hermes_rl.legacy.pool import LegacyTools
from hermes_rl.legacy.settings import LegacySettings
from hermes_rl.testing.fake_sandbox import FakeSandbox
from hermes_rl.testing.leaks import leak_census
from hermes_rl.testing.loop_monitor import loop_monitor
from hermes_rl.tools import ToolDispatcher
from tests.integration.hermes_world import environment, hermes_home, processes, services, titles
from tests.proof import Proof

PROOF = "scale-legacy-tools"

pytestmark = pytest.mark.scale

ROLLOUTS = 200
CALLS = 5
SLEEP_S = 1.0


async def test_two_hundred_rollouts_keep_the_bound_and_never_block_the_loop(
    hermes_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proof: Proof
) -> None:
    with services() as world:
        for name, value in environment(world).items():
            monkeypatch.setenv(name, value)
        settings = LegacySettings(
            python=hermes_python, home=str(hermes_home(tmp_path, world)), workers=2, threads=64
        )
        found: list[str] = []

        async def run(pool: LegacyTools, number: int) -> None:
            rollout = pool.rollout()
            tools = ToolDispatcher(
                FakeSandbox(), ["web_search"], extra_tools=rollout.tools, on_close=rollout.aclose
            )
            for index in range(CALLS):
                query = orjson.dumps({"query": f"sleep:{SLEEP_S} {number} {index}"}).decode()
                result = await tools.call("web_search", query, str(index))
                assert isinstance(result.content, str)
                found.append(result.content)
            await tools.aclose()

        started_s, cpu_s = time.monotonic(), time.process_time()
        async with leak_census(), LegacyTools(settings) as pool:
            with loop_monitor(spikes=1):
                async with anyio.create_task_group() as group:
                    for number in range(ROLLOUTS):
                        group.start_soon(run, pool, number)
            wall_s, cpu_s = time.monotonic() - started_s, time.process_time() - cpu_s
        assert processes("in_worker") == []
        assert settings.threads / 2 < world.busiest <= settings.threads
        wanted = {f"{number} {index}": 1 for number in range(ROLLOUTS) for index in range(CALLS)}
        assert titles(found) == wanted
    calls = ROLLOUTS * CALLS
    best_s = calls * SLEEP_S / settings.threads
    proof(
        f"{ROLLOUTS} rollouts, {calls} calls of {SLEEP_S:g} s on {settings.threads} threads: "
        f"{wall_s:.1f} s wall (at best {best_s:.1f}), {cpu_s * 1000 / calls:.2f} ms of CPU per "
        "call in the engine's process (the loopback service included)"
    )
