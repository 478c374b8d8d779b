"""Fixtures for all tests. A missing service skips here and fails in CI."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.hermes_venv import hermes_interpreter

TEST_IMAGE = "hermes-test:latest"

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"


def require(condition: bool, reason: str) -> None:
    """Skip the calling test unless ``condition`` holds; fail in CI, where everything must be."""
    if condition:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI must provide this: {reason}")
    pytest.skip(reason)


def _docker_image_present() -> bool:
    if shutil.which("docker") is None:
        return False
    command = ["docker", "image", "inspect", TEST_IMAGE]
    try:
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say which tests stay together when two workers share them (``--dist loadgroup``).

    All that use Docker run in one worker, one after the other; else a file is a group, so that
    what its tests share is made once. The fuzz test goes to whoever is free last.
    """
    for item in items:
        if item.get_closest_marker("docker"):
            item.add_marker(pytest.mark.xdist_group("docker"))
        elif "fuzz" not in item.path.name:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


@pytest.fixture(scope="session")
def docker_image() -> str:
    """Name of the test image; needs a running daemon."""
    require(_docker_image_present(), f"needs dockerd and the image {TEST_IMAGE} (make images)")
    return TEST_IMAGE


@pytest.fixture(scope="session")
def hermes_python() -> str:
    """Interpreter of an environment that has hermes-agent; built once per host, in a minute."""
    try:
        return str(hermes_interpreter())
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        require(False, f"an environment with hermes-agent: {error}")
        raise
