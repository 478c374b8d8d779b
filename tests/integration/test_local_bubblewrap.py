"""Local sandboxes in bubblewrap: the conformance suite, and what is kept out of their reach."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from hermes_rl.backends import bubblewrap
from hermes_rl.backends.local import LocalBackend, create_backend
from hermes_rl.backends.runtime import ensure_runtime
from hermes_rl.errors import BackendUnavailable, ConfigError, SandboxGone
from hermes_rl.sandbox import Backend, BackendSettings, Capability, SandboxSpec
from hermes_rl.testing.hosting import hosted
from hermes_rl.testing.sandbox_conformance import SandboxConformance
from tests.conftest import require

ISOLATED = {"local_isolation": "bwrap"}


@pytest.fixture(scope="module", autouse=True)
def bubblewrap_works() -> None:
    async def check() -> str:
        try:
            bubblewrap.check_bubblewrap(await ensure_runtime(BackendSettings(run_id="x").cache_dir))
        except BackendUnavailable as error:
            return str(error)
        return ""

    complaint = anyio.run(check)
    require(not complaint, complaint)


class TestBubblewrapSandbox(SandboxConformance):
    unwritable = "/usr/denied"

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls) -> Backend:
        return create_backend(BackendSettings(run_id="conformance", options=ISOLATED))


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    settings = BackendSettings(run_id="test", options=ISOLATED)
    async with hosted(create_backend(settings)) as backend:
        yield backend


async def test_it_declares_what_it_adds(backend: LocalBackend) -> None:
    assert {Capability.ISOLATION, Capability.NETWORK_NONE} <= backend.capabilities
    assert not {Capability.IMAGES, Capability.USERS, Capability.PIDS_LIMIT} & backend.capabilities


async def test_no_warning_when_isolated(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with create_backend(BackendSettings(run_id="test", options=ISOLATED)):
            pass
    assert "does not isolate" not in caplog.text


async def test_the_hosts_files_and_processes_are_out_of_reach(
    backend: LocalBackend, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    sandbox = await backend.create(SandboxSpec())

    async def text(cmd: str) -> str:
        return (await sandbox.exec(cmd, timeout_s=30, merge_stderr=True)).text

    assert "No such file" in await text(f"cat {secret}")
    for hidden in ("/etc/shadow", "/etc/ssh", "/etc/machine-id", "/var/log", "/srv", "/opt"):
        assert "No such file" in await text(f"ls {hidden}"), hidden
    assert await text("ls -A /root; ls /home") == "agent\n"
    assert "No such process" in await text(f"kill -0 {os.getpid()}")
    assert len((await text("ls -d /proc/[0-9]*")).split()) < 8
    assert "0000000000000000" in await text("grep CapBnd /proc/self/status")
    for forbidden in ("mount -t tmpfs none /tmp", "hostname x", "mknod /tmp/n c 1 3"):
        assert (await sandbox.exec(forbidden, timeout_s=30)).exit_code != 0, forbidden
    for read_only in ("/usr/bin/x", "/.hermes/x", "/lib/x", "/etc/passwd"):
        assert (await sandbox.exec(f"echo x >{read_only}", timeout_s=30)).exit_code != 0, read_only


OPEN_ALL = r"""
find /proc -path '/proc/[0-9]*' -prune -o -path /proc/pressure -prune -o -type f -print |
python3 -c '
import os, sys
for path in sys.stdin.read().splitlines():
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        print(path)
    except OSError:
        pass
'"""


async def test_the_kernels_settings_cannot_be_written(backend: LocalBackend) -> None:
    """Started by root it is root's process to the kernel, which asks for no capability here."""
    sandbox = await backend.create(SandboxSpec())
    opened = await sandbox.exec(OPEN_ALL, timeout_s=60)
    assert opened.text == ""
    assert (await sandbox.exec("cat /proc/sys/kernel/pid_max", timeout_s=30)).exit_code == 0


async def test_its_supervisor_cannot_be_killed(backend: LocalBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    await sandbox.exec("kill -9 1; kill -STOP 1; kill -9 -1; sleep 0.2", timeout_s=30)
    assert (await sandbox.exec("echo on", timeout_s=30)).text == "on\n"


async def test_sandboxes_do_not_see_each_other(backend: LocalBackend) -> None:
    one, two = await backend.create(SandboxSpec()), await backend.create(SandboxSpec())
    await one.exec(
        "echo 1 >~/their-own; echo 1 >/tmp/their-own; sleep 77 >/dev/null 2>&1 &", timeout_s=30
    )
    seen = await two.exec("ls ~ /tmp; cat /proc/[0-9]*/cmdline", timeout_s=30)
    assert "their-own" not in seen.text
    assert "sleep" not in seen.text


async def test_any_working_directory_can_be_had(backend: LocalBackend) -> None:
    for workdir, seen in (
        ("/app/deep", "/app/deep"),
        ("sub", "/home/agent/sub"),
        ("~/x", "/home/agent/x"),
    ):
        sandbox = await backend.create(SandboxSpec(workdir=workdir))
        assert (await sandbox.exec("pwd; echo x >file", timeout_s=30)).text == f"{seen}\n"
        await sandbox.close()


ENGINE = """
import anyio
from hermes_rl.sandbox import *

async def main():
    settings = BackendSettings(run_id="victim", options={"local_isolation": "bwrap"})
    async with open_backend("local", settings) as backend:
        box = await backend.create(SandboxSpec())
        await box.exec("setsid sleep 4242 >/dev/null 2>&1 &", timeout_s=30)
        print("up", flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


def processes(*words: bytes) -> list[int]:
    """Return the processes whose arguments begin so."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[: len(words)] == list(words):
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def until_counted(count: int, *words: bytes) -> None:
    with anyio.fail_after(60):
        while len(processes(*words)) != count:
            await anyio.sleep(0.02)


async def test_an_engine_that_is_killed_leaves_no_process() -> None:
    with subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            await until_counted(1, b"sleep", b"4242")
        finally:
            process.kill()
    await until_counted(0, b"sleep", b"4242")


async def test_the_end_of_bubblewrap_is_the_end_of_the_sandbox(backend: LocalBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    await sandbox.exec("setsid sleep 4343 >/dev/null 2>&1 &", timeout_s=30)
    await until_counted(1, b"sleep", b"4343")
    program = bubblewrap.path_to_bubblewrap().encode()
    for pid in filter(is_ours, processes(program)):
        os.kill(pid, signal.SIGKILL)
    with anyio.fail_after(60), pytest.raises(SandboxGone):
        await sandbox.exec("sleep 120", timeout_s=120)
    await until_counted(0, b"sleep", b"4343")


def is_ours(pid: int) -> bool:
    """Tell whether a process descends from this test."""
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()


async def test_without_bubblewrap_it_is_an_error_or_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    with pytest.raises(BackendUnavailable, match="apt install bubblewrap"):
        async with create_backend(BackendSettings(run_id="test", options=ISOLATED)):
            pass
    with caplog.at_level(logging.WARNING):
        auto = BackendSettings(run_id="test", options={"local_isolation": "auto"})
        async with create_backend(auto) as backend:
            assert Capability.ISOLATION not in backend.capabilities
    assert "does not isolate" in caplog.text
    assert "apt install bubblewrap" in caplog.text
    checks = {
        check.name: check
        for check in await create_backend(BackendSettings(run_id="test", options=ISOLATED)).doctor()
    }
    assert not checks["bubblewrap"].ok


def test_a_misspelt_isolation_is_named() -> None:
    with pytest.raises(ConfigError, match="local_isolation"):
        create_backend(BackendSettings(run_id="test", options={"local_isolation": "docker"}))


async def test_killed_from_the_host_is_not_the_agents_doing(backend: LocalBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    mark = os.fsencode(sandbox.id)
    (outer,) = [pid for helper in below(os.getpid(), b"nursery.py") for pid in below(helper, mark)]
    os.kill(outer, signal.SIGKILL)
    with pytest.raises(SandboxGone, match="from the host") as gone:
        await sandbox.exec("sleep 60", timeout_s=60)
    assert (gone.value.cause, gone.value.by_agent, gone.value.retryable) == ("killed", False, True)


async def test_a_cache_that_is_emptied_in_a_run_is_filled_again(tmp_path: Path) -> None:
    settings = BackendSettings(run_id="test", options=ISOLATED, cache_dir=tmp_path / "cache")
    async with create_backend(settings) as backend:
        await (await backend.create(SandboxSpec())).close()
        shutil.rmtree(tmp_path / "cache")
        sandbox = await backend.create(SandboxSpec())
        assert (await sandbox.exec("echo hi", timeout_s=60)).text == "hi\n"


def below(parent: int, word: bytes) -> list[int]:
    """The children of a process that have a word on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
            line = (path / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == parent and word in line:
            found.append(int(path.name))
    return found
