"""89 generated tasks at once on Docker: images built once, one interrupt, the same totals."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.interrupted_benchmark import interrupt_and_resume
from tests.proof import Proof

PROOF = "scale-benchmarks"

pytestmark = [
    pytest.mark.scale,
    pytest.mark.docker,
    pytest.mark.timeout(2700),
    pytest.mark.usefixtures("docker_image"),
]

TASKS = 89


async def test_89_tasks_at_once_one_interrupt_and_the_same_totals(
    tmp_path: Path, proof: Proof
) -> None:
    began_s = time.monotonic()
    seconds = await interrupt_and_resume(tmp_path, TASKS, timeout_s=1200)
    parts = ", ".join(f"{value:.1f} s {name}" for name, value in seconds.items())
    proof(
        f"{TASKS} generated tasks at once on Docker, a scripted agent over HTTP, one Ctrl-C, "
        f"--resume:\n{time.monotonic() - began_s:.1f} s ({parts}).\n"
        "Every image was built once; exit code 130; no container of either process left; the same "
        "totals,\ncategories and samples as without an interrupt; no rollout errored, none flagged."
    )
