"""A hundred sandboxes on two ssh hosts, one of which dies; engines that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.to_thread
import orjson
import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.backends.ssh_sandbox import SSHSandbox
from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import BackendSettings, SandboxSpec, open_backend
from tests.integration.loopback_sshd import Sshd, running_sshd
from tests.proof import Proof

pytestmark = pytest.mark.scale

PROOF = "scale-ssh"
BOXES = 100
CALLS = 20
KILLS = 5
GONE_S = 10.0
ENGINE = """
import anyio, orjson, sys
from hermes_rl.sandbox import BackendSettings, SandboxSpec, open_backend

async def main():
    settings = BackendSettings(run_id="killed", options=orjson.loads(sys.argv[1]))
    async with open_backend("ssh", settings) as backend:
        for _ in range(5):
            sandbox = await backend.create(SandboxSpec(lease_s=60))
            await sandbox.exec("setsid sleep 600 &", timeout_s=60, session=None)
        sys.stdout.write("up\\n")
        sys.stdout.flush()
        await anyio.sleep(600)

anyio.run(main)
"""


def options_for(*servers: Sshd) -> dict[str, object]:
    known = servers[0].directory / "known_together"
    known.write_text("".join(each.known_hosts.read_text() for each in servers))
    keys = [str(each.key) for each in servers]
    hosts = [each.host for each in servers]
    return servers[0].options(hosts=hosts, keys=keys, known_hosts=str(known))


async def test_a_hundred_on_two_hosts_and_one_host_dies(tmp_path: Path, proof: Proof) -> None:
    with running_sshd(tmp_path / "left") as left, running_sshd(tmp_path / "right") as right:
        settings = BackendSettings(run_id="scale", options=options_for(left, right))
        async with open_backend("ssh", settings) as backend:
            sandboxes: list[SSHSandbox] = []
            done: dict[str, int] = {}
            lost: set[str] = set()

            async def create() -> None:
                sandbox = await backend.create(SandboxSpec())
                assert isinstance(sandbox, SSHSandbox)
                sandboxes.append(sandbox)

            async def work(sandbox: SSHSandbox) -> None:
                try:
                    for number in range(CALLS):
                        result = await sandbox.exec(f"echo {number}", timeout_s=120)
                        assert result.text == f"{number}\n"
                        done[sandbox.id] = number + 1
                except SandboxError:
                    lost.add(sandbox.id)

            began_s = time.monotonic()
            async with anyio.create_task_group() as tasks:
                for _ in range(BOXES):
                    tasks.start_soon(create)
            created_s = time.monotonic() - began_s
            began_s = time.monotonic()
            async with anyio.create_task_group() as tasks:
                for sandbox in sandboxes:
                    tasks.start_soon(work, sandbox)
            worked_s = time.monotonic() - began_s
            assert lost == set()
            assert sum(done.values()) == BOXES * CALLS
            on_left = {each.id for each in sandboxes if each.host.address.port == left.port}
            assert len(on_left) == BOXES // 2
            connections = left.children()
            left.stop()
            for pid in connections:
                os.kill(pid, signal.SIGKILL)
            async with anyio.create_task_group() as tasks:
                for sandbox in sandboxes:
                    tasks.start_soon(work, sandbox)
            assert lost == on_left
            proof(
                f"{BOXES} sandboxes on two hosts: all up in {created_s:.1f} s over "
                f"{len(connections)} and {len(right.children())} connections; {BOXES * CALLS} "
                f"commands in {worked_s:.1f} s, no error; one host killed: its {len(on_left)} "
                f"lost, the other's {BOXES - len(on_left)} went on without one"
            )
        assert right.left_in_the_end() == []
        assert left.left_in_the_end() == []


async def test_a_killed_engines_sandboxes_are_gone_in_seconds(tmp_path: Path, proof: Proof) -> None:
    """The stream's end stops them: long before their lease of a minute."""
    slowest_s = 0.0
    with running_sshd(tmp_path / "host") as sshd:
        words = [sys.executable, "-c", ENGINE, orjson.dumps(options_for(sshd)).decode()]
        for _ in range(KILLS):
            with subprocess.Popen(words, stdout=subprocess.PIPE) as engine:
                assert engine.stdout is not None
                assert await anyio.to_thread.run_sync(engine.stdout.readline) == b"up\n"
                assert len(sshd.left()) == 5
                killed_s = time.monotonic()
                engine.kill()
            while sshd.left():
                await anyio.sleep(0.02)
                assert time.monotonic() - killed_s < GONE_S
            slowest_s = max(slowest_s, time.monotonic() - killed_s)
    proof(f"{KILLS} engines killed: their five sandboxes each gone within {slowest_s:.1f} s")
