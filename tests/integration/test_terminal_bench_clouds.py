"""The thirteen tiny tasks on the clouds, by the command; each sandbox is a real container."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest

from hermes_rl.runlog.reader import read_run

from .clouds import CLOUDS, Cloud
from .evaluate_process import DATA, run
from .tiny_tasks import EXPECTED, FLAGGED, NO_BOOTSTRAP, PASSED, SLOW, TINY, Outcome

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

MISSING = ["changes", "engine_access", "pause"]
"""Of the reward phase's protections: nothing outside a cloud's sandbox looks into it for us."""
ON_CLOUDS: dict[str, Outcome] = {
    # Docker's, but for the flag: what an agent changed is not seen.
    name: PASSED if oracle == FLAGGED else oracle
    for name, (oracle, _, _) in EXPECTED.items()
}


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
    records = read_run(tmp_path / "run").records
    got: dict[str, Outcome] = {}
    for (name, _), record in records.items():
        if record.failure is not None:
            got[name] = record.failure.kind
        else:
            assert record.reward is not None
            got[name] = (record.status, record.reward, bool(record.flags))
    assert got == ON_CLOUDS
    scored = [name for name, outcome in got.items() if outcome not in (SLOW, NO_BOOTSTRAP)]
    assert len(scored) >= 10
    assert {name for name, r in records.items() if list(r.missing_protections) != MISSING} == set()
