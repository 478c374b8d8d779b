"""The hostile cases of ``tests/integration/test_docker_hostile.py`` at full size."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from hermes_rl.errors import UnsafeArchive
from hermes_rl.sandbox import BackendSettings
from tests.integration.attacked import attacked, is_well
from tests.integration.docker_boxes import containers_of, run_settings
from tests.proof import Proof

PROOF = "hostile-full-size"
FLOOD_BYTES = 10_000_000_000
ENTRIES = 1_000_000
PIDS = 4096
RSS_GROWTH_MIB = 50
REMOVED_S = 300.0

pytestmark = [
    pytest.mark.soak,
    pytest.mark.docker,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("docker_image"),
]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[BackendSettings]:
    settings = run_settings(tmp_path)
    yield settings
    deadline_s = time.monotonic() + REMOVED_S
    while time.monotonic() < deadline_s:
        # A million files take the daemon a while, in which it may not answer.
        with suppress(subprocess.TimeoutExpired):
            if containers_of(settings.run_id) == {}:
                return
        time.sleep(1)
    pytest.fail("the test left containers")


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def test_a_flood_of_ten_gigabytes(settings: BackendSettings, proof: Proof) -> None:
    async with attacked(settings) as victim:
        before_mib, start_s = rss_mib(), time.monotonic()
        command = f"head -c {FLOOD_BYTES} /dev/zero"
        result = await victim.exec(command, timeout_s=600, max_output_bytes=10_000)
        took_s = time.monotonic() - start_s
        assert (result.exit_code, result.stdout_total) == (0, FLOOD_BYTES)
        assert len(result.stdout) == 10_000
        grown_mib = rss_mib() - before_mib
        proof(f"{FLOOD_BYTES} bytes of output: {took_s:.0f} s, engine grew by {grown_mib:.0f} MiB")
        assert grown_mib < RSS_GROWTH_MIB
        assert await is_well(victim)


async def test_a_million_entries_are_refused_and_nobody_waits(
    settings: BackendSettings, tmp_path: Path, proof: Proof
) -> None:
    async with attacked(settings, memory_mb=2048) as victim:
        make = f"mkdir t && cd t && seq {ENTRIES} | xargs touch && ls -f | wc -l"
        made = await victim.exec(make, timeout_s=600, session=None)
        assert int(made.text) == ENTRIES + 2
        before_mib, start_s = rss_mib(), time.monotonic()
        with pytest.raises(UnsafeArchive, match="too many entries"):
            await victim.download("t", tmp_path / "t")
        took_s, grown_mib = time.monotonic() - start_s, rss_mib() - before_mib
        proof(f"{ENTRIES} entries refused after {took_s:.0f} s, engine grew by {grown_mib:.0f} MiB")
        assert await is_well(victim)


async def test_a_fork_bomb_under_the_usual_limit(settings: BackendSettings, proof: Proof) -> None:
    async with attacked(settings, pids=PIDS, memory_mb=2048) as victim:
        bomb = "f() { f | f & f; }; f"
        start_s = time.monotonic()
        result = await victim.exec(bomb, timeout_s=5, session=None, max_output_bytes=1000)
        took_s = time.monotonic() - start_s
        assert result.exit_code != 0
        await victim.kill_all()
        with anyio.fail_after(120):
            while not await is_well(victim):
                await anyio.sleep(0.5)
        well_s = time.monotonic() - start_s - took_s
        proof(f"fork bomb, {PIDS} processes: ended {took_s:.1f} s, well {well_s:.1f} s later")
