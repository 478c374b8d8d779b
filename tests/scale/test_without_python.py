"""The rest of the conformance suite where there is no python3: see the tests of this name there."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.sandbox import Backend, BackendSettings, open_backend
from hermes_rl.testing.sandbox_conformance import SandboxConformance
from tests.integration.bubblewrap_here import require_bubblewrap
from tests.integration.cloud_conformance import OnDaytona, OnModal
from tests.integration.loopback_sshd import Sshd
from tests.integration.test_clouds_without_python import WithoutPython, bare_image
from tests.integration.test_ssh_without_python import sshd

__all__ = ["bare_image", "sshd"]

pytestmark = pytest.mark.scale


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
class TestModal(OnModal, WithoutPython, SandboxConformance):
    pass


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
class TestDaytona(OnDaytona, WithoutPython, SandboxConformance):
    pass


class TestSSH(SandboxConformance):
    python = (sys.executable,)

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, sshd: Sshd) -> Backend:
        return open_backend("ssh", BackendSettings(run_id="conformance", options=sshd.options()))


class TestSSHInBubblewrap(SandboxConformance):
    unwritable = "/usr/denied"

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, sshd: Sshd) -> Backend:
        require_bubblewrap()
        options = sshd.options(ssh_isolation="bwrap")
        return open_backend("ssh", BackendSettings(run_id="conformance", options=options))
