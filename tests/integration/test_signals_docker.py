"""Signals with twelve Docker sandboxes at work; scale has as many as its other tests."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from .signalled_boxes import signal_boxes

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("docker_image"),
]

BOXES = 12
LIMIT_S = 150.0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
async def test_the_first_signal_removes_every_sandbox_and_ends(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    ending = await signal_boxes(tmp_path, BOXES, [number], limit_s=LIMIT_S)
    assert ending.code == code, ending.stderr
    assert "Traceback" not in ending.stderr
    assert f"{number.name}: stopping" in ending.stderr


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [(signal.SIGINT, signal.SIGINT, 130), (signal.SIGHUP, signal.SIGTERM, 143)],
)
async def test_after_the_second_signal_sandboxes_end_with_their_channel(
    tmp_path: Path, first: signal.Signals, second: signal.Signals, code: int
) -> None:
    ending = await signal_boxes(tmp_path, BOXES, [first, second], limit_s=LIMIT_S)
    # Whoever is done before the second signal comes has ended by the first.
    assert ending.code in (128 + first, code), ending.stderr
    assert "Traceback" not in ending.stderr
