"""Several ssh hosts: sandboxes are spread, one's trouble stays its own; the commands for them."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import orjson
import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

from hermes_rl.backends import regular_sweep
from hermes_rl.backends.ssh_sandbox import SSHSandbox
from hermes_rl.errors import BackendUnavailable, SandboxError
from hermes_rl.sandbox import Backend, BackendSettings, Inventory, SandboxSpec, open_backend

from .bubblewrap_here import require_bubblewrap
from .evaluate_process import run
from .free_port import free_port
from .loopback_sshd import GUEST, Sshd, make_key, running_sshd, sshd_for_guest

PATIENCE_S = 60.0


@pytest.fixture
def left_host(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "left") as server:
        yield server
        assert server.left_in_the_end() == []


@pytest.fixture
def right_host(tmp_path: Path) -> Iterator[Sshd]:
    with running_sshd(tmp_path / "right") as server:
        yield server
        assert server.left_in_the_end() == []


def options_for(*servers: Sshd, hosts: tuple[str, ...] = (), **more: object) -> dict[str, object]:
    """Return options that reach all the servers with each one's key."""
    known = servers[0].directory / "known_together"
    known.write_text("".join(each.known_hosts.read_text() for each in servers))
    return servers[0].options(
        hosts=[*(each.host for each in servers), *hosts],
        keys=[str(each.key) for each in servers],
        known_hosts=str(known),
        **more,
    )


@asynccontextmanager
async def opened(options: dict[str, object]) -> AsyncIterator[Backend]:
    async with open_backend("ssh", BackendSettings(run_id="test", options=options)) as backend:
        yield backend


async def created(backend: Backend, count: int) -> list[SSHSandbox]:
    found: list[SSHSandbox] = []

    async def create() -> None:
        sandbox = await backend.create(SandboxSpec())
        assert isinstance(sandbox, SSHSandbox)
        found.append(sandbox)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(create)
    return found


def by_port(sandboxes: list[SSHSandbox]) -> Counter[int | None]:
    return Counter(sandbox.host.address.port for sandbox in sandboxes)


async def works(sandbox: SSHSandbox) -> bool:
    return (await sandbox.exec("echo well", timeout_s=PATIENCE_S)).text == "well\n"


async def test_sandboxes_are_spread_and_a_dead_host_takes_only_its_own(
    left_host: Sshd, right_host: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(options_for(left_host, right_host)) as backend:
        sandboxes = await created(backend, 6)
        assert by_port(sandboxes) == {left_host.port: 3, right_host.port: 3}
        connections = left_host.children()
        left_host.stop()
        for pid in connections:
            os.kill(pid, signal.SIGKILL)
        for sandbox in sandboxes:
            if sandbox.host.address.port == right_host.port:
                assert await works(sandbox)
            else:
                with anyio.fail_after(PATIENCE_S), pytest.raises(SandboxError):
                    await sandbox.exec("sleep 100", timeout_s=120)
        assert by_port(await created(backend, 4)) == {right_host.port: 4}
        assert isinstance(backend, Inventory)
        assert len(await backend.records()) == 7
        assert await backend.sweep() == []
        assert f"127.0.0.1:{left_host.port}" in caplog.text


async def test_one_host_that_is_down_from_the_start_is_done_without(
    right_host: Sshd, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = f"root@127.0.0.1:{free_port()}"
    async with opened(options_for(right_host, hosts=(nobody,))) as backend:
        assert f"going on without a host: {nobody}" in caplog.text
        (sandbox,) = await created(backend, 1)
        assert await works(sandbox)


async def test_one_that_was_down_at_first_is_made_ready_when_it_is_used_not_when_it_is_swept(
    left_host: Sshd, right_host: Sshd
) -> None:
    require_bubblewrap()
    options = options_for(left_host, right_host, ssh_isolation="bwrap")
    left_host.stop()
    async with opened(options) as backend:
        left_host.start()
        assert await backend.sweep() == []
        sandboxes = await created(backend, 4)
        assert by_port(sandboxes) == {left_host.port: 2, right_host.port: 2}
        for sandbox in sandboxes:
            assert await works(sandbox)


async def test_one_that_lost_its_interpreter_gets_it_again_though_it_was_swept(
    right_host: Sshd,
) -> None:
    require_bubblewrap()
    async with opened(right_host.options(ssh_isolation="bwrap")) as backend:
        (sandbox,) = await created(backend, 1)
        await sandbox.close()
        (interpreter,) = right_host.sandboxes.glob("runtime-*")
        shutil.rmtree(interpreter)
        with pytest.raises(BackendUnavailable, match="lost its files"):
            await backend.create(SandboxSpec())
        assert await backend.sweep() == []
        (again,) = await created(backend, 1)
        assert await works(again)
        assert interpreter.exists()


async def test_a_host_that_cannot_now_is_passed_over(right_host: Sshd) -> None:
    with sshd_for_guest(disk_mb=1) as small:
        async with opened(options_for(right_host, small, directory="~/x")) as backend:
            first = await created(backend, 2)
            (guest,) = [each for each in first if each.host.address.user == GUEST]
            await guest.exec("cat /dev/zero > ~/big", timeout_s=PATIENCE_S)
            assert {each.host.address.user for each in await created(backend, 3)} == {"root"}
        assert small.left_in_the_end() == []


async def test_a_host_that_comes_back_as_another_is_passed_over(
    left_host: Sshd, right_host: Sshd
) -> None:
    options = options_for(left_host, right_host)
    left_host.stop()
    async with opened(options) as backend:
        (left_host.directory / "host_key").unlink()
        make_key(left_host.directory / "host_key")
        left_host.start()
        # It has most room, but its key is not the one that is known.
        assert by_port(await created(backend, 3)) == {right_host.port: 3}


# The commands


async def hermes_rl(*words: str, cwd: Path) -> tuple[int, str, str]:
    done = await anyio.to_thread.run_sync(lambda: run(cwd, *words))
    return done.returncode, done.stdout, done.stderr


def flags(options: dict[str, object]) -> list[str]:
    return ["--env.backend_options", orjson.dumps(options).decode()]


async def test_what_a_host_kept_is_listed_and_cleaned_and_the_living_stay(
    right_host: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regular_sweep, "SWEEP_INTERVAL_S", 3600.0)  # else it may clean first
    given = flags(right_host.options())
    async with opened(right_host.options()) as backend:
        (living,) = await created(backend, 1)
        await backend.sweep()  # after the first one of its own
        dead = right_host.sandboxes / "ssh-0123456789ab"
        dead.mkdir()
        (dead / "lock").write_text('{"labels": {"hermes.run": "gone"}, "pids": []}')
        words = ["sandboxes", "list", "--backend", "ssh", *given]
        code, out, _ = await hermes_rl(*words, cwd=tmp_path)
        lines = {line.split()[0]: line for line in out.splitlines()}
        assert code == 0
        assert "keep" in lines[living.id]
        assert "running" in lines[living.id]
        assert "owner dead" in lines[dead.name]
        assert "gone" in lines[dead.name]
        words[1] = "clean"
        code, out, _ = await hermes_rl(*words, cwd=tmp_path)
        assert (code, f"{right_host.host} {dead.name}" in out.splitlines()) == (0, True)
        assert right_host.left() == [living.id]
        assert await works(living)


async def test_clean_names_what_it_removed(right_host: Sshd, tmp_path: Path) -> None:
    dead = right_host.sandboxes / "ssh-0123456789ab"
    dead.mkdir(parents=True)
    (dead / "lock").write_text('{"labels": {}, "pids": []}')
    words = ["sandboxes", "clean", "--backend", "ssh", *flags(right_host.options())]
    code, out, _ = await hermes_rl(*words, cwd=tmp_path)
    assert (code, out.splitlines()) == (0, [f"{right_host.host} {dead.name}", "ssh: removed 1"])


async def test_doctor_says_which_host_is_well_and_what_the_other_lacks(
    right_host: Sshd, tmp_path: Path
) -> None:
    nobody = f"root@127.0.0.1:{free_port()}"
    given = flags(options_for(right_host, hosts=(nobody,)))
    code, out, _ = await hermes_rl("doctor", "ssh", *given, cwd=tmp_path)
    assert code == 1
    assert f"ok    {right_host.host}: reached" in out
    assert f"FAIL  {nobody}: " in out
    assert "sshd runs there" in out
