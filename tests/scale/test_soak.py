"""Twenty minutes of sandboxes that come, work, break in every way and go: nothing may grow."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from hermes_rl.backends.docker import DockerBackend, create_backend
from hermes_rl.errors import FileError, SandboxGone
from hermes_rl.sandbox import Sandbox
from tests.integration.docker_boxes import box, containers_of, docker, run_settings
from tests.proof import Proof

PROOF = "soak"

pytestmark = [
    pytest.mark.soak,
    pytest.mark.docker,
    pytest.mark.usefixtures("docker_image"),
]

BOXES = int(os.environ.get("SOAK_BOXES", "60"))
DURATION_S = float(os.environ.get("SOAK_S", "1200"))
SAMPLES = 40
"""Taken over the whole time; the first quarter is warm-up."""
MAX_GROWTH_MIB = 15.0
MAX_GROWTH_COUNT = 5.0
"""Descriptors, threads, tasks: their level depends on what runs at the moment."""


@dataclass(slots=True, frozen=True)
class Sample:
    """What this process and the daemon hold at a moment."""

    rss_mib: float
    descriptors: int
    threads: int
    tasks: int
    containers: int

    @classmethod
    async def take(cls, run_id: str) -> Sample:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        containers = await anyio.to_thread.run_sync(containers_of, run_id)
        return cls(
            rss_mib=pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
            descriptors=len(os.listdir("/proc/self/fd")),
            threads=threading.active_count(),
            tasks=len(asyncio.all_tasks()),
            containers=len(containers),
        )


Work = Callable[[Sandbox, random.Random], Awaitable[None]]


async def ordinary_work(sandbox: Sandbox, dice: random.Random) -> None:
    data = dice.randbytes(dice.randrange(1, 300_000))
    await sandbox.write("blob", data)
    result = await sandbox.exec("wc -c < blob; (sleep 30 &) ; exit 3", timeout_s=60)
    assert (result.exit_code, result.text) == (3, f"{len(data)}\n")
    assert await sandbox.read("blob", max_bytes=len(data)) == data


async def timeout(sandbox: Sandbox, dice: random.Random) -> None:
    assert (await sandbox.exec("sleep 60 | cat", timeout_s=dice.random())).timed_out


async def cancelled_command(sandbox: Sandbox, dice: random.Random) -> None:
    with anyio.move_on_after(dice.random()):
        await sandbox.exec("yes", timeout_s=60)


async def output_flood(sandbox: Sandbox, dice: random.Random) -> None:
    result = await sandbox.exec("head -c 20000000 /dev/zero", timeout_s=60)
    assert result.stdout_total == 20_000_000


async def unread_stream(sandbox: Sandbox, dice: random.Random) -> None:
    async with sandbox.stream("yes", timeout_s=60) as process:
        await anext(aiter(process))
        await anyio.sleep(dice.random())


async def out_of_memory(sandbox: Sandbox, dice: random.Random) -> None:
    result = await sandbox.exec(["python3", "-c", "b = b'1' * (1 << 30)"], timeout_s=60)
    assert result.exit_code == 137


async def missing_file(sandbox: Sandbox, dice: random.Random) -> None:
    with pytest.raises(FileError):
        await sandbox.read("nosuch", max_bytes=1)


async def paused(sandbox: Sandbox, dice: random.Random) -> None:
    async with sandbox.pause():
        await sandbox.read("/etc/hostname", max_bytes=1000, trusted=True)


async def trusted_command(sandbox: Sandbox, dice: random.Random) -> None:
    result = await sandbox.exec("echo trusted; exit 5", timeout_s=60, trusted=True)
    assert (result.exit_code, result.text) == (5, "trusted\n")


async def forged_frames(sandbox: Sandbox, dice: random.Random) -> None:
    forge = "for f in /proc/1/fd/*; do [ -p $f ] && head -c 99 /dev/zero > $f & done; sleep 60"
    with pytest.raises(SandboxGone):
        await sandbox.exec(forge, timeout_s=60)


async def removed_by_someone(sandbox: Sandbox, dice: random.Random) -> None:
    await anyio.to_thread.run_sync(docker, "rm", "-f", sandbox.id)
    with pytest.raises(SandboxGone):
        await sandbox.exec("true", timeout_s=60)


GENTLE: tuple[Work, ...] = (
    *(ordinary_work,) * 6,
    timeout,
    cancelled_command,
    output_flood,
    unread_stream,
    out_of_memory,
    missing_file,
    paused,
    trusted_command,
)
FATAL: tuple[Work, ...] = (forged_frames, removed_by_someone)


async def churn(backend: DockerBackend, dice: random.Random, done: list[str]) -> None:
    """Sandboxes one after the other, each for a few calls, some cut short or broken."""
    while True:
        if dice.random() < 0.1:
            with anyio.move_on_after(dice.random() / 2):
                await (await backend.create(box(memory_mb=128))).close()
        async with _fresh(backend) as sandbox:
            for _ in range(dice.randrange(3, 12)):
                work = dice.choice(GENTLE)
                await work(sandbox, dice)
                done.append(work.__name__)
            if dice.random() < 0.2:
                fatal = dice.choice(FATAL)
                await fatal(sandbox, dice)
                done.append(fatal.__name__)


@asynccontextmanager
async def _fresh(backend: DockerBackend) -> AsyncIterator[Sandbox]:
    sandbox = await backend.create(box(memory_mb=128))
    try:
        yield sandbox
    finally:
        await sandbox.close()


@pytest.mark.timeout(DURATION_S + 600)
async def test_nothing_grows(tmp_path: Path, proof: Proof) -> None:
    settings = run_settings(tmp_path)
    samples: list[Sample] = []
    done: list[str] = []
    async with create_backend(settings) as backend, anyio.create_task_group() as tasks:
        for number in range(BOXES):
            tasks.start_soon(churn, backend, random.Random(number), done)
        start_s = time.monotonic()
        for _ in range(SAMPLES):
            await anyio.sleep(DURATION_S / SAMPLES)
            samples.append(await Sample.take(settings.run_id))
            proof(_line(time.monotonic() - start_s, samples[-1], done))
        tasks.cancel_scope.cancel()
    assert containers_of(settings.run_id) == {}
    _assert_flat(samples[SAMPLES // 4 :], proof)


def _line(elapsed_s: float, sample: Sample, done: list[str]) -> str:
    values = ", ".join(
        f"{field.name} {getattr(sample, field.name):.0f}" for field in fields(sample)
    )
    broken = sum(done.count(work.__name__) for work in FATAL)
    return f"{elapsed_s:6.0f} s: {values}; {len(done)} calls, {broken} sandboxes broken"


def _assert_flat(samples: list[Sample], proof: Proof) -> None:
    """Compare the medians of the first and of the last third."""
    third = len(samples) // 3
    for field in fields(Sample):
        first, last = (
            statistics.median(getattr(sample, field.name) for sample in part)
            for part in (samples[:third], samples[-third:])
        )
        allowed = MAX_GROWTH_MIB if field.name == "rss_mib" else MAX_GROWTH_COUNT + 0.1 * first
        proof(f"{field.name}: {first:.1f} -> {last:.1f}")
        assert last - first <= allowed, field.name
