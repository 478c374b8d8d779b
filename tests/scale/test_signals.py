"""Each signal, once and twice, to a run with two hundred Docker sandboxes at work."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.integration.signalled_boxes import GRACE_S, signal_boxes
from tests.proof import Proof

PROOF = "scale-signals"
BOXES = int(os.environ.get("SCALE_BOXES", "200"))
LIMIT_S = 300.0
AT_ONCE_S = 2.0
GONE_S = 5.0 + BOXES / 15
"""Two cores' daemon removes about 30 in a second when nothing else runs."""

pytestmark = [
    pytest.mark.scale,
    pytest.mark.docker,
    pytest.mark.timeout(1200),
    pytest.mark.usefixtures("docker_image"),
]


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name
)
async def test_a_signal_to_all_sandboxes_at_work(
    tmp_path: Path, proof: Proof, number: signal.Signals, times: int
) -> None:
    ending = await signal_boxes(tmp_path, BOXES, [number] * times, limit_s=LIMIT_S)
    left = ", ".join(f"{count} {state}" for state, count in sorted(ending.left.items())) or "none"
    proof(
        f"{number.name} x {times} with {BOXES} sandboxes at work: exit code {ending.code} after "
        f"{ending.ended_s:.1f} s; sandboxes left then: {left}; gone {ending.gone_s:.1f} s later"
    )
    assert ending.code == 128 + number, ending.stderr
    assert "Traceback" not in ending.stderr
    assert ending.ended_s <= (GRACE_S if times == 1 else AT_ONCE_S)
    assert ending.gone_s <= GONE_S
