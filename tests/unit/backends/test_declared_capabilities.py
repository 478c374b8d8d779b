"""What each backend declares. A change here changes which tasks run where."""

from __future__ import annotations

import shutil

import pytest

from hermes_rl.backends.docker import CAPABILITIES as DOCKER
from hermes_rl.backends.local import create_backend
from hermes_rl.backends.singularity import create_backend as create_singularity
from hermes_rl.backends.ssh import create_backend as create_ssh
from hermes_rl.sandbox import BackendSettings, Capability
from tests.conftest import require

DECLARED: dict[str, set[Capability]] = {
    "local": {Capability.BASH, Capability.NETWORK_PUBLIC, Capability.PTY},
    "local in bubblewrap": {
        Capability.BASH,
        Capability.ISOLATION,
        Capability.NETWORK_NONE,
        Capability.NETWORK_PUBLIC,
        Capability.PTY,
    },
    "docker": {
        Capability.CHANGES,
        Capability.CPU_LIMIT,
        Capability.DOCKERFILE,
        Capability.ENGINE_ACCESS,
        Capability.IMAGES,
        Capability.ISOLATION,
        Capability.MEMORY_LIMIT,
        Capability.NETWORK_NONE,
        Capability.NETWORK_PUBLIC,
        Capability.PAUSE,
        Capability.PIDS_LIMIT,
        Capability.PTY,
        Capability.USERS,
    },
}
"""Docker's sandboxes add BASH where the image has it."""


@pytest.mark.parametrize(
    ("name", "options"),
    [("local", {}), ("local in bubblewrap", {"local_isolation": "bwrap"})],
)
def test_local_declares_what_the_table_says(name: str, options: dict[str, str]) -> None:
    require(shutil.which("bash") is not None, "needs bash")
    backend = create_backend(BackendSettings(run_id="test", options=options))
    assert backend.capabilities == DECLARED[name]


def test_docker_declares_what_the_table_says() -> None:
    assert DECLARED["docker"] == DOCKER


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({}, set()),
        ({"ssh_isolation": "bwrap"}, {Capability.ISOLATION, Capability.NETWORK_NONE}),
    ],
)
def test_ssh_declares_what_the_table_says(options: dict[str, str], added: set[Capability]) -> None:
    settings = BackendSettings(run_id="test", options={"hosts": ["somewhere"], **options})
    assert create_ssh(settings).capabilities == {
        Capability.NETWORK_PUBLIC,
        Capability.PTY,
        *added,
    }


def test_singularity_declares_what_every_installation_gives_before_it_tries() -> None:
    """What else this machine allows: ``tests/integration/test_singularity.py``."""
    assert create_singularity(BackendSettings(run_id="test")).capabilities == {
        Capability.IMAGES,
        Capability.ISOLATION,
        Capability.NETWORK_PUBLIC,
        Capability.PTY,
    }
