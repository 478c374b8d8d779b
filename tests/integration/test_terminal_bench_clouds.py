"""The thirteen tiny tasks on the clouds, by the command; each sandbox is a real container."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest

from hermes_rl.runlog.reader import read_run

from .clouds import CLOUDS, Cloud
from .evaluate_process import DATA, run
from .tiny_tasks import NO_BOOTSTRAP, SLOW, TINY, expected_unseen, recorded_outcomes

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

MISSING = ["changes", "engine_access", "pause"]
"""Of the reward phase's protections: nothing outside a cloud's sandbox looks into it for us."""


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_the_tiny_tasks_have_dockers_scores(cloud: Cloud, tmp_path: Path) -> None:
    words = ["evaluate", "terminal-bench-2", "--oracle", "--env.terminal_backend", cloud.name]
    words += ["--env.dataset_name", str(TINY), "--env.data_dir_to_save_evals", "run"]
    async with cloud.serving(in_containers=True) as server:
        with server.environment() as variables:
            storage = {"PYTHONPATH": str(DATA / "loopback_storage")}
            done = await anyio.to_thread.run_sync(
                lambda: run(tmp_path, *words, **variables, **storage)
            )
        assert server.lives.alive == []
    assert "Traceback" not in done.stderr
    got = recorded_outcomes(read_run(tmp_path / "run"), missing=MISSING)
    assert got == expected_unseen("oracle")
    scored = [name for name, outcome in got.items() if outcome not in (SLOW, NO_BOOTSTRAP)]
    assert len(scored) >= 10
