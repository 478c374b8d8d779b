"""The ssh backend when hosts are not trusted, logins refused, connections cut, engines killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import orjson
import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.errors import BackendUnavailable, ConfigError, SandboxError
from hermes_rl.sandbox import Backend, BackendSettings, SandboxSpec, open_backend

from .evaluate_process import processes_with
from .free_port import free_port
from .loopback_sshd import Sshd, make_key

ENGINE = """
import anyio, orjson, sys
from hermes_rl.sandbox import BackendSettings, SandboxSpec, open_backend

async def main():
    settings = BackendSettings(run_id="killed", options=orjson.loads(sys.argv[1]))
    async with open_backend("ssh", settings) as backend:
        sandbox = await backend.create(SandboxSpec())
        await sandbox.exec("setsid sleep 7531 & echo up", timeout_s=60, session=None)
        sys.stdout.write("up\\n")
        sys.stdout.flush()
        await anyio.sleep(60)

anyio.run(main)
"""


def backend_of(sshd: Sshd, **options: object) -> Backend:
    return open_backend("ssh", BackendSettings(run_id="test", options=sshd.options(**options)))


def sleeping(seconds: int) -> list[str]:
    wanted = f"sleep {seconds} "  # and nothing else: the shell's words hold it too
    return [line for line in processes_with([wanted]) if line == wanted]


async def test_an_unknown_host_key_is_refused_and_the_fix_named(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("")
    with pytest.raises(ConfigError, match=r"ssh-keyscan|known_hosts") as caught:
        async with backend_of(sshd, known_hosts=str(known)):
            pass
    assert "127.0.0.1" in str(caught.value)


async def test_a_host_key_that_changed_is_refused(sshd: Sshd, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other").with_suffix(".pub").read_text()
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} {other}")
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1"):
        async with backend_of(sshd, known_hosts=str(known)):
            pass


async def test_a_refused_login_is_told(sshd: Sshd, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"root@127\.0\.0\.1"):
        async with backend_of(sshd, keys=[str(make_key(tmp_path / "stranger"))]):
            pass


async def test_a_host_that_is_down_is_told(sshd: Sshd) -> None:
    port = free_port()
    with pytest.raises(BackendUnavailable, match=f"127.0.0.1:{port}"):
        async with backend_of(sshd, hosts=[f"root@127.0.0.1:{port}"], check_host_key=False):
            pass


async def test_a_cut_connection_ends_its_sandbox_and_the_next_one_works(sshd: Sshd) -> None:
    async with backend_of(sshd) as backend:
        lost = await backend.create(SandboxSpec())
        for pid in sshd.children():
            os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(60), pytest.raises(SandboxError):
            await lost.exec("sleep 100", timeout_s=120, session=None)
        await lost.close()
        sandbox = await backend.create(SandboxSpec())
        assert (await sandbox.exec("echo back", timeout_s=60)).text == "back\n"
        await sandbox.close()


async def test_a_killed_engine_leaves_nothing_on_the_host(sshd: Sshd) -> None:
    words = [sys.executable, "-c", ENGINE, orjson.dumps(sshd.options()).decode()]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"up\n"
        assert sshd.left()
        assert sleeping(7531)
        engine.kill()
    end = time.monotonic() + 60
    while sshd.left() or sleeping(7531):
        assert time.monotonic() < end, (sshd.left(), sleeping(7531))
        await anyio.sleep(0.05)


async def test_thirty_on_one_host_share_few_connections(sshd: Sshd) -> None:
    async with backend_of(sshd) as backend:
        answers: list[str] = []

        async def one(number: int) -> None:
            sandbox = await backend.create(SandboxSpec())
            answers.append((await sandbox.exec(f"echo {number}", timeout_s=60)).text)
            await everyone.wait()
            await sandbox.close()

        everyone = anyio.Event()
        async with anyio.create_task_group() as tasks:
            for number in range(30):
                tasks.start_soon(one, number)
            with anyio.fail_after(60):
                while len(answers) < 30:
                    await anyio.sleep(0.02)
            assert len(sshd.left()) == 30
            assert len(sshd.children()) <= 5
            everyone.set()
    assert sorted(answers, key=int) == [f"{number}\n" for number in range(30)]
