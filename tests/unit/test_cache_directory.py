"""Where what is kept between runs lies, whatever the environment says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hermes_rl.cache_directory import cache_directory

NOBODY = 54321
"""A user id that no line of /etc/passwd has."""
ASK = f"""
import os, sys
from hermes_rl.cache_directory import cache_directory
from hermes_rl.errors import ConfigError
if os.getuid() == 0:
    os.setuid({NOBODY})
os.environ.pop("HOME", None)
os.environ.pop("XDG_CACHE_HOME", None)
try:
    print(cache_directory())
except ConfigError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("value", "expected"),
    [("/c", "/c/hermes_rl"), ("", "{home}/.cache/hermes_rl"), ("c", "{cwd}/c/hermes_rl")],
)
def test_it_is_absolute_and_below_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, expected: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert str(cache_directory()) == expected.format(home=tmp_path / "home", cwd=tmp_path)


def test_a_user_without_a_home_is_told_what_to_set() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=60
    )
    # One who is not root may have a home that is found without HOME.
    assert "set HOME" in done.stdout or done.stdout.endswith("/.cache/hermes_rl\n")
