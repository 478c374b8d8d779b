"""The thirteen tiny tasks over ssh, by the command: in bubblewrap on a host with image files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
import orjson
import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.runlog.reader import RecordedRun, read_run

from .bubblewrap_here import require_bubblewrap
from .docker_boxes import TEST_IMAGE
from .evaluate_process import run
from .image_files import unpacked_image
from .loopback_sshd import Sshd
from .tiny_tasks import (
    EXPECTED,
    NO_BOOTSTRAP,
    SLOW,
    TINY,
    expected_unseen,
    reasons_skipped,
    recorded_outcomes,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

MISSING = ["changes", "engine_access", "pause", "users"]
"""Of the reward phase's protections: nothing outside the sandbox looks into it for us."""
SKIPPED = {"other-user": "The backend 'ssh' lacks what this task needs: users."}
"""In bubblewrap there is one user; all the other tasks run."""
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def files(docker_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    require_bubblewrap()
    with unpacked_image(TEST_IMAGE, tmp_path_factory.mktemp("image")) as root:
        yield root


async def evaluate(agent: str, options: dict[str, object], where: Path) -> RecordedRun:
    words = ["evaluate", "terminal-bench-2", f"--{agent}", "--env.terminal_backend", "ssh"]
    words += ["--env.backend_options", orjson.dumps(options).decode()]
    words += ["--env.dataset_name", str(TINY), "--env.data_dir_to_save_evals", "run"]
    words += ["--env.max_eval_workers", "4"]
    done = await anyio.to_thread.run_sync(lambda: run(where, *words, limit_s=LIMIT_S))
    assert "Traceback" not in done.stderr
    assert (where / "run").exists(), done.stderr
    return read_run(where / "run")


@pytest.mark.timeout(300)
async def test_tiny_tasks_have_dockers_scores_or_are_skipped_by_name(
    sshd: Sshd, files: Path, tmp_path: Path
) -> None:
    await check_tiny_tasks("oracle", sshd, files, tmp_path)


async def check_tiny_tasks(agent: str, sshd: Sshd, files: Path, tmp_path: Path) -> None:
    """Run them with one agent; what is left out is named."""
    options = sshd.options(
        ssh_isolation="bwrap", images={TEST_IMAGE: str(files)}, task_limits="ignore"
    )
    run = await evaluate(agent, options, tmp_path)
    got = recorded_outcomes(run, missing=MISSING)
    assert reasons_skipped(run) == SKIPPED
    assert got == expected_unseen(agent, skipped=SKIPPED)
    assert sum(outcome not in (SLOW, NO_BOOTSTRAP) for outcome in got.values()) >= 3
    assert sshd.left_in_the_end() == []


@pytest.mark.parametrize(
    ("options", "lacking"),
    [
        ({}, "isolation"),
        ({"ssh_isolation": "bwrap", "images": {TEST_IMAGE: "/"}}, "needs: cpu_limit, memory_limit"),
    ],
    ids=["without_isolation", "with_limits_refused"],
)
async def test_tasks_that_cannot_run_are_skipped_by_what_is_missing(
    options: dict[str, object], lacking: str, sshd: Sshd, tmp_path: Path
) -> None:
    require_bubblewrap()
    records = (await evaluate("oracle", sshd.options(**options), tmp_path)).records
    assert len(records) == len(EXPECTED)
    for record in records.values():
        assert record.status == "skipped"
        assert record.failure is not None
        assert lacking in record.failure.message
