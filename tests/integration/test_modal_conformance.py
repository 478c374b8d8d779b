"""The conformance suite on the modal backend, over a loopback server with real containers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

pytest.importorskip("modal", reason="needs hermes_rl[modal]")

from hermes_rl.backends.modal import create_backend
from hermes_rl.errors import SandboxGone
from hermes_rl.sandbox import Backend, BackendSettings, Capability, Sandbox
from hermes_rl.testing.hosting import hosted
from hermes_rl.testing.modal_server import ModalServer
from hermes_rl.testing.sandbox_conformance import SandboxConformance

from .docker_boxes import TEST_IMAGE, box

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

ABSENT = frozenset(
    {
        Capability.PIDS_LIMIT,
        Capability.PAUSE,
        Capability.CHANGES,
        Capability.ENGINE_ACCESS,
    }
)


class TestModalConformance(SandboxConformance):
    spec = box(image=TEST_IMAGE, workdir="/work")

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def server(cls) -> AsyncIterator[ModalServer]:
        async with hosted(ModalServer(in_containers=True)) as server:
            with server.environment():
                yield server

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, server: ModalServer) -> Backend:
        options = {"creations_per_s": 100.0, "creation_burst": 20}
        return create_backend(BackendSettings(run_id="modal-conformance", options=options))

    async def test_declares_what_modal_has(self, backend: Backend, sandbox: Sandbox) -> None:
        everything = frozenset(Capability) - {Capability.BASH}
        assert backend.capabilities == everything - ABSENT
        assert sandbox.capabilities == backend.capabilities | {Capability.BASH}

    async def test_kill_minus_nine_minus_one(self, fresh: Sandbox) -> None:
        """The supervisor is no PID 1 there: whoever kills everything ends his own sandbox."""
        with pytest.raises(SandboxGone) as caught:
            await fresh.exec("kill -9 -1; sleep 60", timeout_s=60)
        assert (caught.value.cause, caught.value.by_agent) == ("killed", True)
