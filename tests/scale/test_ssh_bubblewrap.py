"""The ssh backend in bubblewrap against the conformance suite, over a real sshd."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.sandbox import Backend, BackendSettings, open_backend
from hermes_rl.testing.sandbox_conformance import SandboxConformance
from tests.integration.bubblewrap_here import require_bubblewrap
from tests.integration.image_files import unpacked_image
from tests.integration.loopback_sshd import Sshd
from tests.integration.test_terminal_bench_ssh import check_tiny_tasks


@pytest.mark.scale
@pytest.mark.docker
async def test_tiny_tasks_are_failed_by_who_does_nothing(
    docker_image: str, sshd: Sshd, tmp_path: Path
) -> None:
    require_bubblewrap()
    with unpacked_image(docker_image, tmp_path) as files:
        await check_tiny_tasks("nop", sshd, files, tmp_path)


@pytest.mark.scale
class TestSSHSandboxInBubblewrap(SandboxConformance):
    unwritable = "/usr/denied"

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, sshd: Sshd) -> Backend:
        require_bubblewrap()
        options = sshd.options(ssh_isolation="bwrap")
        return open_backend("ssh", BackendSettings(run_id="conformance", options=options))
