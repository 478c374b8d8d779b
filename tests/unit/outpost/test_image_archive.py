"""Archives of image files: unpacked once, again when they changed, swept when nobody asks."""

from __future__ import annotations

import os
import subprocess
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
