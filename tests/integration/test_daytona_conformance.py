"""Conformance of the daytona backend, over a loopback server with real containers.

What a terminal's stream could break is run here: commands, kills, streams, transfers, life. The
rest of the suite, which does not depend on what carries the bytes, is run in tests/scale.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

pytest.importorskip("daytona", reason="needs hermes_rl[daytona]")

from hermes_rl.backends.daytona import create_backend
from hermes_rl.errors import SandboxGone
from hermes_rl.sandbox import Backend, BackendSettings, Capability, Sandbox
from hermes_rl.testing.daytona_server import DaytonaServer
from hermes_rl.testing.hosting import hosted
from hermes_rl.testing.sandbox_conformance import (
    ArgvConformance,
    CancellationConformance,
    CapabilityConformance,
    CommandConformance,
    ConformanceBase,
    KillConformance,
    LifeConformance,
    StreamConformance,
    TransferConformance,
)

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


class OnDaytona(ConformanceBase):
    """The fixtures, for any part of the suite."""

    spec = box(image=TEST_IMAGE, workdir="/work")

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def server(cls) -> AsyncIterator[DaytonaServer]:
        async with hosted(DaytonaServer(in_containers=True)) as server:
            with server.environment():
                yield server

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, server: DaytonaServer) -> Backend:
        options = {"creations_per_s": 100.0, "creation_burst": 20}
        return create_backend(BackendSettings(run_id="daytona-conformance", options=options))


class TestDaytonaConformance(
    OnDaytona,
    CommandConformance,
    KillConformance,
    CancellationConformance,
    CapabilityConformance,
    ArgvConformance,
    StreamConformance,
    TransferConformance,
    LifeConformance,
):
    async def test_declares_what_daytona_has(self, backend: Backend, sandbox: Sandbox) -> None:
        everything = frozenset(Capability) - {Capability.BASH}
        assert backend.capabilities == everything - ABSENT
        assert sandbox.capabilities == backend.capabilities | {Capability.BASH}

    async def test_kill_minus_nine_minus_one(self, fresh: Sandbox) -> None:
        """The supervisor is no PID 1 there: whoever kills everything ends his own sandbox."""
        with pytest.raises(SandboxGone) as caught:
            await fresh.exec("kill -9 -1; sleep 60", timeout_s=60)
        assert (caught.value.cause, caught.value.by_agent) == ("killed", True)
