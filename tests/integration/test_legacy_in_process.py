"""Runs the tests of thread mode and of the old functions in the interpreter with hermes-agent."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
RUN = """
import site, sys
site.addsitedir(sys.argv[1])
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


@pytest.mark.timeout(900)  # The first test of a host builds an environment.
@pytest.mark.parametrize("module", ["test_functions", "test_thread_mode", "test_old_environment"])
def test_in_the_process_of_hermes_agent(hermes_python: str, module: str) -> None:
    site = sysconfig.get_paths()["purelib"]
    done = subprocess.run(
        [
            hermes_python,
            "-c",
            RUN,
            site,
            "-q",
            "-p",
            "no:cacheprovider",
            f"tests/in_process/{module}.py",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "HERMES_TEST_SITE": site, "PYTHONDONTWRITEBYTECODE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.timeout(900)
def test_hermes_agent_can_be_installed_beside_us(hermes_python: str) -> None:
    """Nothing that it pins is outside what we ask for: pip would refuse the extra."""
    listed = "from importlib.metadata import requires; print(*requires('hermes-agent'), sep='\\n')"
    done = subprocess.run(
        [hermes_python, "-c", listed], capture_output=True, text=True, timeout=60, check=True
    )
    pins: dict[str, str] = {}
    for pinned in map(Requirement, done.stdout.splitlines()):
        if pinned.marker is None or pinned.marker.evaluate({"extra": ""}):
            pins |= {canonicalize_name(pinned.name): one.version for one in pinned.specifier}
    ours = [Requirement(line) for line in requires("hermes_rl") or ()]
    refused = [
        str(need)
        for need in ours
        if (need.marker is None or need.marker.evaluate({"extra": ""}))
        and (version := pins.get(canonicalize_name(need.name)))
        and not need.specifier.contains(version)
    ]
    assert len(pins) > 10
    assert refused == []
