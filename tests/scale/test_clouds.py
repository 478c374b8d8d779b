"""Hundreds of cloud sandboxes at once, against the loopback servers; leases at full length."""

from __future__ import annotations

import time

import anyio
import pytest

from hermes_rl.testing.sandbox_conformance import (
    CommandConformance,
    FileConformance,
    KillConformance,
    SessionConformance,
)
from tests.integration.cloud_conformance import OnDaytona, OnModal
from tests.integration.clouds import CLOUDS, Cloud, killed_engine, live_at_once, most_at_once
from tests.proof import Proof

PROOF = "scale-clouds"

pytestmark = pytest.mark.scale

BOXES = 300
BURST, PER_S, STARTING = 5, 10.0, 16
SLACK = 1
"""Of the window's edges: a call is logged when it arrives, not when it is let go."""


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_three_hundred_at_once(cloud: Cloud, proof: Proof) -> None:
    options = {"creations_per_s": PER_S, "creation_burst": BURST}
    create = cloud.calls[0]
    async with cloud.serving() as server:
        start_s = time.monotonic()
        async with cloud.backend("scale", starting=STARTING, **options) as backend:
            assert await live_at_once(backend, BOXES) == list(range(BOXES))
        wall_s = time.monotonic() - start_s
        most = server.log.most_within(create, 1.0)
        starting = most_at_once(server.log, create)
        proof(
            f"{cloud.name}: {BOXES} sandboxes in {wall_s:.1f} s, no error; at most {most} "
            f"creations in a second, {starting} starting at once; {len(server.lives.alive)} left"
        )
        assert len(server.log.times(create)) == BOXES
        assert most <= BURST + PER_S + SLACK
        assert starting <= STARTING
        assert server.lives.alive == []


@pytest.mark.parametrize("cloud", CLOUDS)
async def test_a_killed_engine_with_a_lease_of_a_minute(cloud: Cloud, proof: Proof) -> None:
    async with cloud.serving() as server:
        with server.environment() as variables:
            engine = killed_engine(cloud.name, leases_s=[60] * 3, environment=variables)
        async with engine as killed_at_s:
            sandboxes = server.lives.alive
            assert len(sandboxes) == 3
            with anyio.fail_after(75):
                for sandbox in sandboxes:
                    await sandbox.ended.wait()
        lived_s = max(server.log.times("gone")) - max(server.log.times("created"))
        after_s = max(server.log.times("gone")) - killed_at_s
        proof(
            f"{cloud.name}: gone {lived_s:.1f} s after their creation with a lease of 60 s, "
            f"{after_s:.1f} s after the engine was killed"
        )
        assert lived_s <= 60 + 1


class OwnConformance(CommandConformance, KillConformance, FileConformance, SessionConformance):
    """The part of the conformance suite that the tests of every day leave out."""


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
class TestModalRest(OnModal, OwnConformance):
    pass


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
class TestDaytonaRest(OnDaytona, OwnConformance):
    pass
