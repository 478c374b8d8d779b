"""A hundred Docker sandboxes at once, twenty tool calls each: no error, nothing left behind."""

from __future__ import annotations

import time

import pytest
from integration.docker_boxes import box
from integration.mixed_work import mixed_model, run_boxes

from hermes_rl.backends.ownership import RUN_LABEL
from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.testing.leaks import leak_census

pytestmark = [pytest.mark.scale, pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

BOXES = 100


async def test_a_hundred_boxes_with_twenty_calls_each_and_nothing_is_left() -> None:
    config = EnvConfig(terminal_backend="docker", max_running_sandboxes=BOXES)
    engine = RolloutEngine(config, model=mixed_model())
    started_s, cpu_s = time.monotonic(), time.process_time()
    async with leak_census(container_label=f"{RUN_LABEL}={engine.run_id}"), engine:
        results = await run_boxes(engine, BOXES, box())
    wall_s = time.monotonic() - started_s
    cpu_s = time.process_time() - cpu_s
    calls = sum(r.agent.counters["tool_calls"] for r in results if r.agent)
    assert calls == BOXES * 20
    print(
        f"\n{BOXES} boxes, {calls} calls: {wall_s:.1f} s wall, {calls / wall_s:.0f} calls/s, "
        f"{cpu_s * 1000 / calls:.2f} ms of engine CPU per call (start and removal included)"
    )
