"""What only Modal has, with its real SDK against the loopback server. See ``test_clouds.py``."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio
import pytest

from hermes_rl.errors import SandboxGone, Unsupported

from .clouds import MODAL, SPEC, lost_in


@pytest.mark.parametrize(
    ("how", "cause"), [("timeout", "expired"), ("deleted", "removed"), ("idle", "unknown")]
)
async def test_why_a_sandbox_ended(how: str, cause: str) -> None:
    async with MODAL.serving() as server, MODAL.backend() as backend:
        sandbox = await backend.create(SPEC)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.end, server.lives.alive[0], how)
            error = await lost_in(sandbox)
        assert isinstance(error, SandboxGone)
        assert (error.cause, error.by_agent) == (cause, False)


async def test_a_gpu_comes_with_the_older_kind_of_sandbox() -> None:
    async with MODAL.serving() as server, MODAL.backend(gpu="T4") as backend:
        sandbox = await backend.create(replace(SPEC, gpus=2))
        assert (await sandbox.exec("echo on", timeout_s=20)).text == "on\n"
        wanted = server.lives.alive[0].definition.resources.gpu_config
        assert (wanted.gpu_type, wanted.count) == ("T4", 2)
        assert server.log.times(MODAL.calls[0]) == []
        await sandbox.close()
        assert server.lives.alive == []


async def test_what_is_asked_for_reaches_modal() -> None:
    async with MODAL.serving() as server, MODAL.backend(region="us-east") as backend:
        spec = replace(SPEC, cpus=1.5, memory_mb=512, network="none", lease_s=100.2)
        await backend.create(spec)
        asked = server.lives.alive[0].definition
        resources = asked.resources
        assert (resources.milli_cpu, resources.milli_cpu_max) == (1500, 1500)
        assert (resources.memory_mb, resources.memory_mb_max) == (512, 512)
        assert list(asked.scheduler_placement.regions) == ["us-east"]
        blocked = type(asked.network_access).NetworkAccessType.Value("BLOCKED")
        assert asked.network_access.network_access_type == blocked
        assert asked.timeout_secs == 101
        labels = server.lives.alive[0].labels
        assert labels["hermes.run"] == "test-run"
        assert int(labels["hermes.deadline"]) - time.time() == pytest.approx(100, abs=10)


async def test_no_variable_of_the_task_becomes_a_secret_there() -> None:
    async with MODAL.serving() as server, MODAL.backend() as backend:
        await backend.create(replace(SPEC, env={"KEY": "hunter2"}))
        assert server.log.times("SecretGetOrCreate") == []


async def test_a_life_longer_than_modals_is_refused_by_name() -> None:
    async with MODAL.serving(), MODAL.backend() as backend:
        with pytest.raises(Unsupported, match="24 hours"):
            await backend.create(replace(SPEC, lease_s=90_000.0))
