"""The ssh backend on hosts without python3: our interpreter is brought there."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.backends import runtime, ssh_host
from hermes_rl.errors import BackendUnavailable, ConfigError
from hermes_rl.sandbox import Backend, BackendSettings, Sandbox, SandboxSpec, open_backend
from hermes_rl.testing.sandbox_conformance import (
    CommandConformance,
    KillConformance,
    TransferConformance,
)

from .bubblewrap_here import require_bubblewrap
from .loopback_sshd import Sshd, running_sshd


def without_python(directory: Path) -> str:
    """Make a PATH with all of this machine's programs but Python, and sshd's lines that set it."""
    programs, home = directory / "programs", directory / "home"
    programs.mkdir(parents=True)
    home.mkdir()
    for top in ("/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for path in Path(top).glob("*"):
            target = programs / path.name
            if not (path.name.startswith(("python", "pypy")) or target.is_symlink()):
                target.symlink_to(path)
    return f"SetEnv PATH={programs} HOME={home}\n"


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    directory = tmp_path_factory.mktemp("sshd")
    with running_sshd(directory / "sshd", extra=without_python(directory)) as server:
        yield server
        assert server.left_in_the_end() == []


@pytest.fixture
def fresh_host(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "sshd", extra=without_python(tmp_path)) as server:
        yield server


def interpreters(sshd: Sshd) -> list[Path]:
    return sorted(sshd.sandboxes.glob("*runtime-*"))


class TestSSHSandboxWithoutPython(CommandConformance, KillConformance, TransferConformance):
    """The part of the suite that is run in every test; the rest is in ``tests/scale``."""

    python = (sys.executable,)

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls, sshd: Sshd) -> Backend:
        return open_backend("ssh", BackendSettings(run_id="conformance", options=sshd.options()))

    async def test_there_is_no_python(self, sandbox: Sandbox) -> None:
        result = await sandbox.exec("command -v python3 python", timeout_s=20)
        assert (result.exit_code, result.text) == (1, "")


async def test_engines_that_come_at_once_share_one_interpreter(fresh_host: Sshd) -> None:
    answers: list[str] = []

    async def engine() -> None:
        async with fresh_host.backend() as backend:
            sandbox = await backend.create(SandboxSpec())
            answers.append((await sandbox.exec("echo on", timeout_s=60)).text)
            await sandbox.close()

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(engine)
    assert answers == 4 * ["on\n"]
    (only,) = interpreters(fresh_host)
    inode = only.stat().st_ino
    await engine()
    assert [path.stat().st_ino for path in interpreters(fresh_host)] == [inode]


async def test_one_that_is_deleted_or_changed_is_brought_again(fresh_host: Sshd) -> None:
    async with fresh_host.backend() as backend:
        await (await backend.create(SandboxSpec())).close()
        (there,) = interpreters(fresh_host)
        shutil.rmtree(there)
        assert await backend.sweep() == []
        sandbox = await backend.create(SandboxSpec())
        assert (await sandbox.exec("echo on", timeout_s=60)).text == "on\n"
        await sandbox.close()
    (there / "outpost.pyc").write_bytes(b"changed")
    async with fresh_host.backend():
        assert (there / "outpost.pyc").read_bytes() != b"changed"


async def refusal(server: Sshd, kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        async with server.backend():
            pass
    return str(caught.value)


async def test_a_host_that_cannot_take_it_is_told_what_helps(tmp_path: Path) -> None:
    extra = without_python(tmp_path)
    (tmp_path / "programs" / "sha256sum").unlink()
    with running_sshd(tmp_path / "sshd", extra=extra) as server:
        told = await refusal(server, ConfigError)
    assert "has no python3" in told
    assert ": sha256sum. Install python3 there" in told


async def test_a_disk_that_lets_no_program_run_is_told(tmp_path: Path) -> None:
    extra, place = without_python(tmp_path), tmp_path / "sshd" / "sandboxes"
    setup = f"mkdir -p {place}\nmount -t tmpfs -o noexec,mode=700 tmpfs {place}"
    with running_sshd(tmp_path / "sshd", extra=extra, setup=setup) as server:
        told = await refusal(server, ConfigError)
    assert f"{place} lets no program run (mounted noexec?). Install python3 there" in told
    assert "backend option 'directory'" in told


async def test_a_full_disk_is_told_and_left_as_it_was(tmp_path: Path) -> None:
    extra, place = without_python(tmp_path), tmp_path / "sshd" / "sandboxes"
    setup = f"mkdir -p {place}\nmount -t tmpfs -o size=8m,mode=700 tmpfs {place}"
    with running_sshd(tmp_path / "sshd", extra=extra, setup=setup) as server:
        assert "the disk may be full" in await refusal(server, BackendUnavailable)
        assert server.process is not None
        with anyio.fail_after(60):  # the host says so first, then removes what it has
            while os.listdir(f"/proc/{server.process.pid}/root{place}"):
                await anyio.sleep(0.05)


async def test_sandboxes_in_bubblewrap_cannot_write_to_it(sshd: Sshd) -> None:
    require_bubblewrap()
    async with sshd.backend(ssh_isolation="bwrap") as backend:
        sandbox = await backend.create(SandboxSpec())
        tried = (
            "touch /.hermes/x; mount -o remount,rw /.hermes; rm /.hermes/outpost.pyc; ls /.hermes"
        )
        found = await sandbox.exec(tried, timeout_s=60)
        assert "outpost.pyc" in found.text
        assert "x" not in found.text.split()
        assert (await sandbox.exec(f"ls {sshd.sandboxes}", timeout_s=60)).exit_code != 0
        await sandbox.close()


def test_what_the_host_runs_finds_its_imports_in_our_interpreter() -> None:
    assert {"bundle", *ssh_host._MODULES} <= {*runtime.GUESTS, *runtime.PROGRAMS}
