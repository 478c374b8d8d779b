"""Runs the tests of thread mode and of the old functions in the interpreter with hermes-agent."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from pathlib import Path

import pytest

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
