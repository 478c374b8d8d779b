"""Hundreds of cloud sandboxes at once, against the loopback servers; leases at full length."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest

pytest.importorskip("modal", reason="needs hermes_rl[modal]")
pytest.importorskip("daytona", reason="needs hermes_rl[daytona]")

from hermes_rl.sandbox import BackendSettings, open_backend
from hermes_rl.testing.daytona_server import DaytonaServer
from hermes_rl.testing.modal_server import ModalServer
from hermes_rl.testing.sandbox_conformance import FileConformance, SessionConformance
from tests.integration.cloud_checks import killed_engine, live_at_once, most_at_once
from tests.integration.test_daytona_conformance import OnDaytona

pytestmark = pytest.mark.scale

BOXES = 300
RATE = {"creations_per_s": 10.0, "creation_burst": 5}
SLACK = 1
"""Of the window's edges: a call is logged when it arrives, not when it is let go."""

CLOUDS: list[Any] = [
    pytest.param(ModalServer, "modal", "SandboxCreateV2", id="modal"),
    pytest.param(DaytonaServer, "daytona", "create", id="daytona"),
]


@pytest.mark.parametrize(("cloud", "name", "call"), CLOUDS)
async def test_three_hundred_at_once(cloud: Any, name: str, call: str) -> None:
    async with cloud() as server:
        with server.environment():
            settings = BackendSettings(run_id="scale", max_starting=16, options=RATE)
            start_s = time.monotonic()
            async with open_backend(name, settings) as backend:
                printed = await live_at_once(backend, BOXES)
            wall_s = time.monotonic() - start_s
        most = server.log.most_within(call, 1.0)
        print(f"\n{name}: {BOXES} sandboxes in {wall_s:.1f} s, at most {most} creations a second")
        assert sorted(map(int, printed)) == list(range(BOXES))
        assert len(server.log.times(call)) == BOXES
        assert most <= RATE["creation_burst"] + RATE["creations_per_s"] + SLACK
        assert most_at_once(server.log, call) <= 16
        assert server.lives.alive == []


@pytest.mark.parametrize(("cloud", "name", "call"), CLOUDS)
async def test_a_killed_engine_with_a_lease_of_a_minute(cloud: Any, name: str, call: str) -> None:
    async with cloud() as server:
        with server.environment() as variables:
            environment = dict(variables)
        async with killed_engine(name, lease_s=60, count=3, environment=environment):
            sandboxes = server.lives.alive
            assert len(sandboxes) == 3
            with anyio.fail_after(75):
                for sandbox in sandboxes:
                    await sandbox.ended.wait()
        lived_s = max(server.log.times("gone")) - max(server.log.times("created"))
        print(f"\n{name}: gone {lived_s:.1f} s after their creation")
        assert lived_s <= 60 + 1


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
class TestDaytonaFilesAndSessions(OnDaytona, FileConformance, SessionConformance):
    """The part of the conformance suite that the tests of every day leave out."""
