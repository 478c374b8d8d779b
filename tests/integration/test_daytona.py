"""What only Daytona has, with its real SDK against the loopback server. See ``test_clouds.py``."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio
import pytest

from hermes_rl.backends.cloud_vendor import IDLE_COMMAND
from hermes_rl.errors import SandboxGone, Unsupported
from hermes_rl.testing.daytona_server import Refusal
from hermes_rl.testing.daytona_storage import entrypoint_of
from hermes_rl.testing.loopback_cloud import Fault

from .clouds import DAYTONA, SPEC, lost_in


async def test_a_sandbox_deleted_by_someone_else() -> None:
    async with DAYTONA.serving() as server, DAYTONA.backend() as backend:
        sandbox = await backend.create(SPEC)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.end, server.lives.alive[0], "deleted")
            error = await lost_in(sandbox)
        assert isinstance(error, SandboxGone)
        assert (error.cause, error.by_agent) == ("removed", False)


async def test_what_is_asked_for_reaches_daytona() -> None:
    async with DAYTONA.serving() as server, DAYTONA.backend(target="eu", disk_gb=5) as backend:
        spec = replace(SPEC, cpus=1.5, memory_mb=1500, network="none", lease_s=100.0)
        await backend.create(spec)
        asked = server.lives.alive[0].asked
        assert (asked["cpu"], asked["memory"], asked["disk"]) == (2, 2, 5)
        assert (asked["target"], asked["networkBlockAll"]) == ("eu", True)
        assert (asked["ttlMinutes"], asked["autoStopInterval"]) == (2, 2)
        assert asked["autoDeleteInterval"] == 0
        assert asked["user"] == "root"
        assert asked["buildInfo"]["dockerfileContent"].startswith("FROM hermes-test:latest\n")
        assert entrypoint_of(asked["buildInfo"]) == list(IDLE_COMMAND)
        labels = server.lives.alive[0].labels
        assert labels["hermes.run"] == "test-run"
        assert int(labels["hermes.deadline"]) - time.time() == pytest.approx(100, abs=10)


async def test_a_snapshot_is_used_where_no_image_is_named() -> None:
    async with DAYTONA.serving() as server, DAYTONA.backend(snapshot="daytona-small") as backend:
        await backend.create(replace(SPEC, image=None))
        assert server.lives.alive[0].asked["snapshot"] == "daytona-small"
        with pytest.raises(Unsupported, match="its own limits"):
            await backend.create(replace(SPEC, image=None, cpus=2.0))


async def test_a_sandbox_in_use_outlives_its_idle_timer_and_then_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hermes_rl.backends.cloud_session.TOUCH_INTERVAL_S", 0.3)
    async with (
        DAYTONA.serving(minute_s=3.0) as server,
        DAYTONA.backend(auto_stop_minutes=1) as backend,
    ):
        sandbox = await backend.create(SPEC)
        await anyio.sleep(4.0)  # longer than the timer
        assert (await sandbox.exec("echo on", timeout_s=10)).text == "on\n"
        assert len(server.log.times("touch")) >= 4
        server.faults.add("touch", Fault(refusal=Refusal(503, "try later")), times=100)
        with anyio.fail_after(60):
            await server.lives.alive[0].ended.wait()
        assert server.log.events[-1].detail == "idle"
