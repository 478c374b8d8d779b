"""Directories of sandboxes on this machine: what stubborn ones leave behind, whose they are."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_rl.backends.local import create_backend
from hermes_rl.backends.local_directories import (
    BackendDirectory,
    list_records,
    remove_tree,
    sweep,
)
from hermes_rl.backends.outpost.leftovers import remove_locked
from hermes_rl.backends.outpost.sandbox_lock import is_abandoned
from hermes_rl.errors import BackendUnavailable
from hermes_rl.sandbox import BackendSettings
from tests.integration.bubblewrap_here import require_bubblewrap

STRANGER = 65_534
PROGRAM = """
import os, sys
from hermes_rl.backends.local_directories import remove_tree
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
remove_tree(sys.argv[1])
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users reach; pytest's own are closed to them."""
    with tempfile.TemporaryDirectory(prefix="hermes-test-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_directories_closed_to_their_owner_are_removed_too(place: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("needs root, to be another user")
    top = place / "top"
    (top / "work" / "work" / "below").mkdir(parents=True)
    (top / "work" / "work" / "below" / "file").write_text("")
    (top / "link").symlink_to("/etc")
    os.chown(place, STRANGER, STRANGER)
    for path in [top, *top.rglob("*")]:
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    for path in (top / "work/work/below", top / "work/work", top / "work", top):
        path.chmod(0)
    words = [sys.executable, "-c", PROGRAM, str(top), str(STRANGER)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert not top.exists()
    assert Path("/etc/passwd").exists()


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "gone")


def test_what_is_locked_stays_and_what_is_not_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = BackendDirectory.make("run")
    dead, made_now, cut_short = (mine.path.parent / name for name in ("dead", "new", "short"))
    for path in (dead, made_now, cut_short):
        path.mkdir()
    (dead / "lock").write_text("gone\nnobody\n")
    os.utime(cut_short, (1, 1))
    assert sorted(sweep()) == sorted([str(dead), str(cut_short)])
    assert mine.path.is_dir()
    assert made_now.is_dir()
    mine.remove()
    assert not mine.path.exists()


@pytest.mark.parametrize("in_the_way", ["a file", "another's directory"])
async def test_a_place_that_cannot_be_used_is_told_by_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_the_way: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    base = tmp_path / f"hermes_rl-{os.getuid()}"
    if in_the_way == "a file":
        base.write_text("")
    elif os.getuid() != 0:
        pytest.skip("needs root, to give a directory away")
    else:
        base.mkdir()
        os.chown(base, STRANGER, STRANGER)
    backend = create_backend(BackendSettings(run_id="test"))
    for use in (sweep, list_records, lambda: BackendDirectory.make("test")):
        with pytest.raises(BackendUnavailable, match="TMPDIR"):
            use()
    checks = {check.name: check for check in await backend.doctor()}
    assert not checks["temporary directory"].ok
    assert str(base) in checks["temporary directory"].detail


def test_a_directory_whose_lock_could_not_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    descriptors = len(os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(BackendUnavailable, match=r"TMPDIR.*File too large"):
            BackendDirectory.make("test")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    (base,) = tmp_path.iterdir()
    assert not list(base.iterdir())
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_what_cannot_be_removed_yet_is_still_found_by_the_next_sweep(place: Path) -> None:
    top = place / "top"
    (top / "sandbox" / "home").mkdir(parents=True)
    (top / "lock").write_text("")
    code = "import sys; from hermes_rl.backends.outpost.leftovers import remove_locked as remove\n"
    code += "print(remove(sys.argv[1]))"
    words = ["bwrap", "--unshare-user-try", "--dev-bind", "/", "/"]
    words += ["--tmpfs", str(top / "sandbox" / "home"), sys.executable, "-c", code, str(top)]
    require_bubblewrap()
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == ("False\n", "")  # a mount point stays
    assert is_abandoned(str(top))
    assert remove_locked(str(top))
    assert not top.exists()
