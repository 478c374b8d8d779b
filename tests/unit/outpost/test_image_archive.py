"""Archives of image files: unpacked once, again when they changed, swept when nobody asks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hermes_rl.backends.outpost.host_survey import Refusal, images_of
from hermes_rl.backends.outpost.image_archive import unpack
from hermes_rl.backends.outpost.leftovers import UNUSED_S, sweep

PLAN = {"deadline_label": "deadline", "margin_s": 60.0}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "base").mkdir()
    return tmp_path / "base"


def pack(archive: Path, **files: str) -> Path:
    """Make an archive; its files' times are long past."""
    root = archive.parent / f"{archive.name}-files"
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    long_ago = ["--mtime=2001-01-01", "-caf"]
    subprocess.run(["tar", *long_ago, str(archive), "-C", str(root), "."], check=True)
    return archive


def asked(archive: Path, base: Path) -> tuple[Path, bool]:
    found = images_of({"x": str(archive)}, str(base))["x"]
    return Path(found["files"]), found["is_unpacked"]


def made(archive: Path, base: Path) -> Path:
    files, is_unpacked = asked(archive, base)
    assert not is_unpacked
    unpack({"archive": str(archive), "files": str(files)})
    return files


@pytest.mark.parametrize("name", ["image.tar", "image.tar.gz"])
def test_an_archive_is_unpacked_once(name: str, base: Path, tmp_path: Path) -> None:
    archive = pack(tmp_path / name, **{"etc/seed": "1", "dev/null": "left out"})
    files = made(archive, base)
    assert (files / "etc/seed").read_text() == "1"
    assert not (files / "dev/null").exists()
    assert asked(archive, base) == (files, True)
    unpack({"archive": str(archive), "files": str(files)})  # another engine, a moment later
    assert os.listdir(base) == [files.name]


def test_engines_that_unpack_at_once_agree(base: Path, tmp_path: Path) -> None:
    archive = pack(tmp_path / "image.tar", **{"etc/seed": "1"})
    files, _ = asked(archive, base)
    program = (
        "import sys; from hermes_rl.backends.outpost.image_archive import unpack; "
        "sys.stdin.read(); unpack({'archive': sys.argv[1], 'files': sys.argv[2]})"
    )
    words = [sys.executable, "-c", program, str(archive), str(files)]
    engines = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)
    ]
    for engine in engines:
        assert engine.stdin is not None
        engine.stdin.close()  # all are there by now: they begin together
        engine.stdin = None
    complaints = [engine.communicate(timeout=60)[1] for engine in engines]
    assert [engine.returncode for engine in engines] == [0, 0, 0], complaints
    assert (files / "etc/seed").read_text() == "1"
    assert os.listdir(base) == [files.name]


def test_a_target_that_appears_meanwhile_will_do(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack(tmp_path / "image.tar", **{"etc/seed": "1"})
    rename = os.rename

    def be_late(source: str, target: str) -> None:
        (Path(target) / "etc").mkdir(parents=True)
        rename(source, target)

    monkeypatch.setattr(os, "rename", be_late)
    assert made(archive, base).is_dir()
    assert len(os.listdir(base)) == 1


def test_a_place_that_is_no_directory_is_trouble(base: Path, tmp_path: Path) -> None:
    archive = pack(tmp_path / "image.tar", **{"etc/seed": "1"})
    files, _ = asked(archive, base)
    files.write_text("in the way")
    with pytest.raises(OSError, match=str(files)):
        unpack({"archive": str(archive), "files": str(files)})
    assert os.listdir(base) == [files.name]


def test_a_changed_archive_is_another_image(base: Path, tmp_path: Path) -> None:
    archive = pack(tmp_path / "image.tar", **{"etc/seed": "1"})
    old = made(archive, base)
    new = made(pack(archive, **{"etc/seed": "another"}), base)
    assert ((old / "etc/seed").read_text(), (new / "etc/seed").read_text()) == ("1", "another")


def test_what_holds_no_image_is_refused_and_leaves_nothing(base: Path, tmp_path: Path) -> None:
    saved = pack(tmp_path / "saved.tar", **{"manifest.json": "[]"})
    torn = tmp_path / "torn.tar"
    torn.write_bytes(b"no archive" * 1000)
    for archive, told in ((saved, "not docker save"), (torn, "cannot be unpacked")):
        with pytest.raises(Refusal, match=told):
            made(archive, base)
    assert os.listdir(base) == []
    assert images_of({"x": str(tmp_path / "nothing")}, str(base)) == {}


def test_images_that_nobody_asks_for_are_swept(base: Path, tmp_path: Path) -> None:
    archive = pack(tmp_path / "image.tar", **{"etc/seed": "1"})
    files = made(archive, base)
    plan = {**PLAN, "base": str(base)}
    assert sweep(plan) == []
    assert files.exists()  # though all that is in it is old
    then = time.time() - UNUSED_S - 60
    os.utime(files, (then, then))
    assert asked(archive, base) == (files, True)
    sweep(plan)
    assert files.exists()
    os.utime(files, (then, then))
    sweep(plan)
    assert not files.exists()
