"""What a hostile agent may do to its sandbox on an ssh host, whose login has no rights."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.errors import BackendUnavailable, SandboxError
from hermes_rl.sandbox import Capability, Sandbox, SandboxSpec

from .bubblewrap_here import require_bubblewrap
from .loopback_sshd import Sshd, complaint_of_guest_namespaces, sshd_for_guest

FLOOD_BYTES = 20_000_000
PATIENCE_S = 60.0
DISK_MB = 128
BOMB = "ulimit -u 60; f() { f | f & f; }; f"


def _isolation(kind: str) -> str:
    if kind == "none":
        return kind
    require_bubblewrap()
    complaint = complaint_of_guest_namespaces()
    if complaint:
        pytest.skip(complaint)
    return kind


@pytest.fixture(scope="module")
def sshd() -> Iterator[Sshd]:
    with sshd_for_guest() as server:
        yield server
        assert server.left_in_the_end() == []


@pytest.fixture(params=["none", "bwrap"])
def isolation(request: pytest.FixtureRequest) -> str:
    return _isolation(request.param)


@asynccontextmanager
async def _sandbox(sshd: Sshd, isolation: str) -> AsyncIterator[Sandbox]:
    async with sshd.backend(ssh_isolation=isolation) as backend:
        sandbox = await backend.create(SandboxSpec())
        yield sandbox
        await sandbox.close()
        assert sshd.left_in_the_end() == []
    with anyio.fail_after(PATIENCE_S):
        while sshd.processes_of_its_user():
            await anyio.sleep(0.05)


async def _is_well(sandbox: Sandbox) -> bool:
    result = await sandbox.exec("echo well", timeout_s=PATIENCE_S)
    return (result.exit_code, result.text) == (0, "well\n")


async def test_floods_closed_streams_and_closed_directories_do_no_harm(
    sshd: Sshd, isolation: str
) -> None:
    async with _sandbox(sshd, isolation) as sandbox:
        command = f"head -c {FLOOD_BYTES} /dev/zero | tee /dev/stderr"
        result = await sandbox.exec(command, timeout_s=PATIENCE_S, max_output_bytes=10_000)
        assert (result.stdout_total, result.stderr_total) == (FLOOD_BYTES, FLOOD_BYTES)
        assert (len(result.stdout), len(result.stderr)) == (10_000, 10_000)
        endless = await sandbox.exec("yes", timeout_s=1, max_output_bytes=1000)
        assert endless.timed_out
        closed = await sandbox.exec("cat; exec 0<&-; cat; exec 1>&- 2>&-; exit 3", timeout_s=30)
        assert (closed.exit_code, closed.stdout) == (3, b"")
        # Refused to whoever removes files with the login's rights.
        await sandbox.exec("mkdir -p d/e/f; chmod 0 d/e/f d/e d", timeout_s=30)
        assert await _is_well(sandbox)


async def test_a_fork_bomb_under_a_limit_is_killed_with_all_it_made(
    sshd: Sshd, isolation: str
) -> None:
    async with _sandbox(sshd, isolation) as sandbox:
        result = await sandbox.exec(BOMB, timeout_s=2, session=None, max_output_bytes=1000)
        assert result.exit_code != 0
        await sandbox.kill_all()
        with anyio.fail_after(PATIENCE_S):
            while not await _is_well(sandbox):
                await anyio.sleep(0.2)


async def test_a_sandbox_in_bubblewrap_survives_the_killing_of_all_its_processes(
    sshd: Sshd,
) -> None:
    async with _sandbox(sshd, _isolation("bwrap")) as sandbox:
        await sandbox.exec("kill -9 -1; kill -9 1; kill -STOP 1; sleep 0.1", timeout_s=30)
        assert await _is_well(sandbox)


async def test_without_isolation_it_ends_what_the_login_has_and_the_next_sandbox_works(
    sshd: Sshd,
) -> None:
    async with sshd.backend() as backend:
        sandbox = await backend.create(SandboxSpec())
        assert Capability.ISOLATION not in sandbox.capabilities
        with anyio.fail_after(PATIENCE_S), pytest.raises(SandboxError):
            await sandbox.exec("kill -9 -1; sleep 60", timeout_s=50)
        await sandbox.close()
        next_one = await backend.create(SandboxSpec())
        assert await _is_well(next_one)
        await next_one.close()
        await backend.sweep()  # what the dead guard would have removed
        assert sshd.left_in_the_end() == []


async def test_a_full_disk_fails_what_needs_it_and_is_told(isolation: str) -> None:
    with sshd_for_guest(disk_mb=DISK_MB) as sshd:
        async with sshd.backend(ssh_isolation=isolation) as backend:
            sandbox = await backend.create(SandboxSpec())
            filled = await sandbox.exec("cat /dev/zero > ~/big", timeout_s=PATIENCE_S)
            assert filled.exit_code != 0
            assert "No space left" in filled.stderr_text
            assert (await sandbox.exec("echo well", timeout_s=30, session=None)).text == "well\n"
            with pytest.raises(BackendUnavailable, match=r"No space left"):
                await backend.create(SandboxSpec())
            assert sshd.left() == [sandbox.id]
            await sandbox.exec("rm ~/big", timeout_s=30)
            assert await _is_well(sandbox)
            await sandbox.close()
            assert sshd.left_in_the_end() == []
