"""The thirteen tiny tasks over ssh, by the command: in bubblewrap on a host with image files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
import orjson
import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.runlog.reader import RecordedRun, read_run
from tests.conftest import require

from .bubblewrap_here import complaint_of_bubblewrap
from .docker_boxes import TEST_IMAGE
from .evaluate_process import run
from .image_files import unpacked_image
from .loopback_sshd import Sshd, running_sshd
from .tiny_tasks import EXPECTED, FLAGGED, NO_BOOTSTRAP, PASSED, SLOW, TINY, Outcome

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

MISSING = ["changes", "engine_access", "pause", "users"]
"""Of the reward phase's protections: nothing outside the sandbox looks into it for us."""
SKIPPED = {"other-user": "The backend 'ssh' lacks what this task needs: users."}
"""In bubblewrap there is one user; all the other tasks run."""
LIMIT_S = 240.0


@pytest.fixture(scope="module")
def files(docker_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    complaint = complaint_of_bubblewrap()
    require(not complaint, complaint)
    with unpacked_image(TEST_IMAGE, tmp_path_factory.mktemp("image")) as root:
        yield root


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server
        assert server.left_in_the_end() == []


def expected(agent: str) -> dict[str, Outcome]:
    """Docker's outcomes, but for the flag: what an agent changed is not seen."""
    column = ("oracle", "nop").index(agent)
    outcomes = {name: each[column] for name, each in EXPECTED.items() if name not in SKIPPED}
    return {name: PASSED if each == FLAGGED else each for name, each in outcomes.items()}


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
    records = (await evaluate(agent, options, tmp_path)).records
    got: dict[str, Outcome] = {}
    skipped: dict[str, str] = {}
    for (name, _), record in records.items():
        if record.status == "skipped":
            assert record.failure is not None
            skipped[name] = record.failure.message
        elif record.failure is not None:
            known = record.failure.kind in (SLOW, NO_BOOTSTRAP)
            got[name] = record.failure.kind if known else record.failure.message
        else:
            assert record.reward is not None
            got[name] = (record.status, record.reward, bool(record.flags))
            assert list(record.missing_protections) == MISSING
    assert skipped == SKIPPED
    assert got == expected(agent)
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
    complaint = complaint_of_bubblewrap()
    require(not complaint, complaint)
    records = (await evaluate("oracle", sshd.options(**options), tmp_path)).records
    assert len(records) == len(EXPECTED)
    for record in records.values():
        assert record.status == "skipped"
        assert record.failure is not None
        assert lacking in record.failure.message
