"""Twelve generated tasks at once, interrupted and resumed; scale has 89 of them."""

from pathlib import Path

import pytest

from .interrupted_benchmark import interrupt_and_resume

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]


async def test_twelve_tasks_at_once_one_interrupt_and_the_same_totals(tmp_path: Path) -> None:
    await interrupt_and_resume(tmp_path, 12, timeout_s=100)
