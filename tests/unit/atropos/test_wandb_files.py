"""What wandb makes when it is imported goes with the process, or with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("wandb", reason="needs hermes_rl[wandb]")
pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

ALONE = """
from hermes_rl.atropos.wandb_files import wandb_files_together
with wandb_files_together():
    import wandb
"""
WITH_ATROPOS = "import hermes_rl.atropos.base_env"
SAY = """
import sys, tempfile
from wandb.sdk.data_types._private import MEDIA_TMP
print(MEDIA_TMP.name, tempfile.gettempdir(), flush=True)
sys.stdin.read()
"""
AGE_S = 600


def started(temporary: Path, importing: str = ALONE) -> subprocess.Popen[str]:
    """A process that has imported wandb; it ends with its input."""
    return subprocess.Popen(
        [sys.executable, "-c", f"{importing}\n{SAY}"],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def place_of(process: subprocess.Popen[str], temporary: Path) -> Path:
    """Where its files are, once it is there; made to look old."""
    assert process.stdout is not None
    file, usual = process.stdout.readline().split()
    assert usual == str(temporary)
    place = Path(file).parent
    assert place.parent == temporary
    moment = place.stat().st_mtime - AGE_S
    os.utime(place, (moment, moment))
    return place


def test_what_a_killed_process_left_is_removed_by_the_next_one_and_nothing_else(
    tmp_path: Path,
) -> None:
    with started(tmp_path) as killed, started(tmp_path) as living:
        left, kept = place_of(killed, tmp_path), place_of(living, tmp_path)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert {path.name for path in tmp_path.iterdir()} == {left.name, kept.name}
        with started(tmp_path, WITH_ATROPOS) as following:
            assert place_of(following, tmp_path).is_dir()
            assert not left.exists()
            assert kept.is_dir()
            following.communicate("")
        living.communicate("")
    assert list(tmp_path.iterdir()) == []
