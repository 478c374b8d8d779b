"""Two hundred sandboxes at once, and an engine killed at thirty random moments."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from hermes_rl.backends.docker import create_backend
from hermes_rl.backends.ownership import RUN_LABEL
from hermes_rl.sandbox import Sandbox
from hermes_rl.testing.leaks import leak_census
from tests.integration.docker_boxes import box, containers_of, gone_within, run_settings
from tests.proof import Proof

PROOF = "scale-sandboxes"

pytestmark = [
    pytest.mark.scale,
    pytest.mark.docker,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("docker_image"),
]

BOXES = int(os.environ.get("SCALE_BOXES", "200"))
CALLS = 50
KILLS = int(os.environ.get("SCALE_KILLS", "30"))
WORK_LIMIT_S = 600.0
"""Five times what two idle cores take for two hundred sandboxes."""
KINDS = 10
SIZES = (1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20)
ENGINE = Path(__file__).parents[1] / "integration/docker_engine_process.py"


def available_mib() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("MemAvailable"))


async def one_call(sandbox: Sandbox, number: int) -> None:
    """One of ten kinds of work, with its result checked."""
    kind = number % KINDS
    if kind == 0:
        data = os.urandom(SIZES[number // KINDS % len(SIZES)])
        await sandbox.write("/tmp/blob", data)
        summed = await sandbox.exec("sha256sum /tmp/blob", timeout_s=300)
        assert summed.text.split()[0] == hashlib.sha256(data).hexdigest()
        assert await sandbox.read("/tmp/blob", max_bytes=len(data)) == data
    elif kind == 1:
        result = await sandbox.exec("sleep 60", timeout_s=0.5, session=None)
        assert (result.exit_code, result.timed_out) == (124, True)
    elif kind == 2:
        command = "(while :; do sleep 1; done) & echo server"
        result = await sandbox.exec(command, timeout_s=300)
        assert (result.text, result.background) == ("server\n", True)
    elif kind == 3:
        result = await sandbox.exec("seq 100000 | tail -1; exit 7", timeout_s=300)
        assert (result.exit_code, result.text) == (7, "100000\n")
    elif kind == 4:
        assert sorted(entry.name for entry in await sandbox.list("/etc"))
    else:
        result = await sandbox.exec(f"export N={number}; echo $N", timeout_s=300)
        assert result.text == f"{number}\n"


async def test_two_hundred_sandboxes_with_fifty_mixed_calls_each(
    tmp_path: Path, proof: Proof
) -> None:
    settings = run_settings(tmp_path)
    boxes: list[Sandbox] = []
    census = leak_census(container_label=f"{RUN_LABEL}={settings.run_id}", grace_s=30)
    async with census, create_backend(settings) as backend:

        async def create() -> None:
            boxes.append(await backend.create(box(memory_mb=512)))

        async def work(sandbox: Sandbox) -> None:
            for number in range(CALLS):
                await one_call(sandbox, number)
            await sandbox.close()

        free_mib, start_s = available_mib(), time.monotonic()
        async with anyio.create_task_group() as tasks:
            for _ in range(BOXES):
                tasks.start_soon(create)
        up_s, used_mib = time.monotonic() - start_s, free_mib - available_mib()
        start_s = time.monotonic()
        with anyio.fail_after(WORK_LIMIT_S):
            async with anyio.create_task_group() as tasks:
                for sandbox in boxes:
                    tasks.start_soon(work, sandbox)
        work_s = time.monotonic() - start_s
    assert containers_of(settings.run_id) == {}
    proof(
        f"{BOXES} sandboxes up in {up_s:.0f} s ({BOXES / up_s:.1f}/s), "
        f"{used_mib / BOXES:.1f} MiB of memory each; "
        f"{BOXES * CALLS} calls in {work_s:.0f} s ({BOXES * CALLS / work_s:.0f}/s), no error"
    )


async def test_an_engine_killed_at_thirty_random_moments(tmp_path: Path, proof: Proof) -> None:
    moments = random.Random(0)
    slowest_s = 0.0
    async with create_backend(run_settings(tmp_path)) as neighbour:
        own = await neighbour.create(box())
        for _ in range(KILLS):
            settings = run_settings(tmp_path)
            states = ("created", "running", "paused", "transferring", "starting", "starting")
            command = [sys.executable, str(ENGINE), settings.run_id, str(tmp_path), *states]
            engine = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert engine.stdout is not None
            await anyio.to_thread.run_sync(engine.stdout.readline)
            await anyio.sleep(moments.uniform(0, 3))
            engine.kill()
            engine.wait()
            engine.stdout.close()
            killed_s = time.monotonic()
            await _until_only_what_a_sweep_removes(settings.run_id)
            slowest_s = max(slowest_s, time.monotonic() - killed_s)
            await neighbour.sweep()
            assert await gone_within(settings.run_id, 1)
        assert (await own.exec("echo mine", timeout_s=20)).text == "mine\n"
    proof(f"{KILLS} engines killed; their running sandboxes gone within {slowest_s:.1f} s")


async def _until_only_what_a_sweep_removes(run_id: str) -> None:
    with anyio.fail_after(5):
        while set(await anyio.to_thread.run_sync(lambda: {*containers_of(run_id).values()})) - {
            "created",
            "paused",
        }:
            await anyio.sleep(0.05)
