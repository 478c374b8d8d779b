"""``serve`` while everything around it breaks, for as long as it may in earnest."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from tests.integration.serve_chaos import Durations, check_a_disturbed_run


@pytest.mark.scale
@pytest.mark.timeout(900)
async def test_no_group_is_lost_in_a_long_disturbance(tmp_path: Path) -> None:
    long = Durations(model_away_s=20, queue_full_s=60, api_away_s=10)
    await check_a_disturbed_run(tmp_path, long)
