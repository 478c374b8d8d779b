"""Files written since a moment are named, whatever their times say; no others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

from hermes_rl.backends.outpost import rewritten
from hermes_rl.backends.outpost.rewritten import written_since


def test_times_put_back_do_not_hide_a_file(tmp_path: Path) -> None:
    for name in ("old", "new", "unwanted"):
        (tmp_path / name).write_text("x")
    before_s = (tmp_path / "unwanted").stat().st_ctime
    while os.stat(tmp_path / "new").st_ctime <= before_s:
        time.sleep(0.01)
        (tmp_path / "new").write_text("y")
        os.utime(tmp_path / "new", (1, 1))
    os.symlink("nowhere", tmp_path / "newlink")
    since_s = (before_s + os.stat(tmp_path / "new").st_ctime) / 2
    found = set(written_since(since_s, re.compile(r".*/(old|new.*)\Z"), str(tmp_path)))
    assert found == {str(tmp_path / "new"), str(tmp_path / "newlink")}


def test_names_that_are_no_text_are_printed_as_they_are(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/a\n\xff"
    os.close(os.open(name, os.O_CREAT))
    words = [sys.executable, "-IS", rewritten.__file__, "0", ".*", str(tmp_path)]
    done = subprocess.run(words, check=True, capture_output=True)
    assert done.stdout == name + b"\0"


def test_a_name_that_vanishes_does_not_hide_its_neighbours(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    first, second, third = (str(tmp_path / name) for name in os.listdir(tmp_path))
    found = written_since(0, re.compile(".*"), str(tmp_path))
    assert next(found) == first  # The directory has been read by now.
    os.unlink(second)
    assert list(found) == [third]
