"""A hundred Docker sandboxes at once: no error, nothing left behind, and one Ctrl-C."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from hermes_rl.backends.ownership import RUN_LABEL
from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.runlog.reader import read_run
from hermes_rl.testing.leaks import leak_census
from tests.integration.docker_boxes import box, docker
from tests.integration.evaluate_process import (
    end,
    interrupt,
    outcomes,
    run,
    start,
    wait_for_records,
)
from tests.integration.mixed_work import mixed_model, run_boxes

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


def test_one_interrupt_in_the_middle_and_resume_gives_the_same_totals(tmp_path: Path) -> None:
    tasks = f"{Path(__file__).with_name('hundred_tasks.py')}:HundredTasks"
    process = start(
        tmp_path,
        *("evaluate", tasks, "--oracle", "--env.terminal_backend", "docker"),
        *("--env.max_eval_workers", "100", "--env.data_dir_to_save_evals", "run"),
    )
    wait_for_records(process, tmp_path / "run", 20)
    began_s = time.monotonic()
    interrupt(process, signal.SIGINT)
    returned, _, stderr = end(process, 15)
    print(f"\nended {time.monotonic() - began_s:.1f} s after Ctrl-C")
    assert returned == 130, stderr
    left = docker("ps", "-a", "--filter", "label=hermes.owner", "--format", "{{.Labels}}")
    assert f":{process.pid}:" not in left
    finished = outcomes(read_run(tmp_path / "run"))
    assert 20 <= len(finished) < BOXES
    resumed = run(tmp_path, "evaluate", "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert outcomes(read_run(tmp_path / "run")) == {
        (f"task-{number:02}", 0): ("finished", 1.0) for number in range(BOXES)
    }
