"""A local engine killed at random moments: its process trees and directories are gone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from hermes_rl.backends.local import create_backend
from hermes_rl.sandbox import BackendSettings, SandboxSpec
from tests.integration.test_local_sandbox import ENGINE, children, lives
from tests.proof import Proof

PROOF = "scale-local-kills"
KILLS = int(os.environ.get("SCALE_KILLS", "30"))
MOMENTS = ("idle", "running", "streaming", "writing", "creating")
GONE_S = 5.0

pytestmark = [pytest.mark.scale, pytest.mark.timeout(900)]


async def test_a_local_engine_killed_at_thirty_random_moments(proof: Proof) -> None:
    dice = random.Random(0)
    slowest_s = 0.0
    async with create_backend(BackendSettings(run_id="neighbour")) as neighbour:
        own = await neighbour.create(SandboxSpec())
        for number in range(KILLS):
            words = [sys.executable, str(ENGINE), MOMENTS[number % len(MOMENTS)]]
            engine = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert engine.stdout is not None
            read = engine.stdout.readline
            lines = [(await anyio.to_thread.run_sync(read)).split() for _ in range(3)]
            await anyio.sleep(dice.uniform(0, 2))
            helpers = children(engine.pid)
            pids = [int(word) for line in lines for word in line[:2]]
            pids += [*helpers, *(keeper for helper in helpers for keeper in children(helper))]
            engine.kill()
            engine.wait()
            engine.stdout.close()
            killed_s = time.monotonic()
            with anyio.fail_after(GONE_S):
                while any(map(lives, pids)):
                    await anyio.sleep(0.02)
            slowest_s = max(slowest_s, time.monotonic() - killed_s)
            await neighbour.sweep()
            assert not any(Path(line[2]).parent.parent.exists() for line in lines)
        assert (await own.exec("echo mine", timeout_s=60)).text == "mine\n"
    proof(f"{KILLS} local engines killed; all their processes gone within {slowest_s:.2f} s")
