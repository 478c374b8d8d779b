"""Tests in the interpreter that has hermes-agent; run by tests/integration/test_legacy_in_process.

Our own packages come from the development environment, behind hermes-agent's pinned ones.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from hermes_rl.legacy.settings import is_installed_here
from tests.integration.hermes_world import Services, environment, hermes_home, services

if not is_installed_here():
    pytest.skip("needs hermes-agent in this interpreter", allow_module_level=True)

SITE = os.environ.get("HERMES_TEST_SITE", "")


@pytest.fixture(scope="session")
def world() -> Iterator[Services]:
    with services() as made:
        os.environ.update(environment(made))
        yield made


@pytest.fixture(scope="session")
def home(world: Services, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(hermes_home(tmp_path_factory.mktemp("hermes"), world))


@pytest.fixture(scope="session", autouse=True)
def _old_home(home: str) -> None:
    """What the old functions read; the first of them replaces it by a private one."""
    os.environ["HERMES_HOME"] = home


@pytest.fixture(autouse=True)
def quiet(world: Services) -> None:
    world.busiest = 0
    world.queries.clear()
    world.awake.clear()


@pytest.fixture
def run_script() -> Callable[[str], str]:
    """Run a program in a process like this one and return its output."""

    def run(code: str) -> str:
        begin = f"import site\nif {SITE!r}: site.addsitedir({SITE!r})\n"
        done = subprocess.run(
            [sys.executable, "-c", begin + code], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
