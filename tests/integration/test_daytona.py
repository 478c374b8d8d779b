"""The daytona backend with the real SDK, against a loopback server that runs commands for real."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

pytest.importorskip("daytona", reason="needs hermes_rl[daytona]")

from hermes_rl.backends.daytona import create_backend
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    CreateError,
    HermesRLError,
    ImageBuildFailed,
    ImageNotFound,
    SandboxError,
    SandboxGone,
    Unsupported,
)
from hermes_rl.sandbox import Backend, BackendSettings, Capability
from hermes_rl.testing.daytona_server import DaytonaServer, Refusal
from hermes_rl.testing.daytona_storage import allow_loopback_storage
from hermes_rl.testing.loopback_cloud import Fault

from .cloud_checks import SPEC, killed_engine, live_at_once, most_at_once, server_process
from .evaluate_process import environment, run

FAST = {"creations_per_s": 200.0, "creation_burst": 20}
CONTAINER = replace(SPEC, network="none")


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[DaytonaServer]:
    async with DaytonaServer(**options) as server:
        with server.environment():
            yield server


def backend_with(
    run_id: str = "test-run", *, starting: int | None = None, **options: Any
) -> Backend:
    return create_backend(
        BackendSettings(run_id=run_id, max_starting=starting, options={**FAST, **options})
    )


def variables(server: DaytonaServer) -> dict[str, str]:
    with server.environment() as wanted:
        return dict(wanted)


async def test_forty_at_once_keep_the_rate_and_the_limit_on_starting() -> None:
    async with serving(create_s=0.1) as server:
        async with backend_with(starting=8, creations_per_s=15.0, creation_burst=5) as backend:
            printed = await live_at_once(backend, 40)
        assert sorted(map(int, printed)) == list(range(40))
        assert len(server.log.times("create")) == 40
        assert server.log.most_within("create", 1.0) <= 5 + 15 + 1
        assert most_at_once(server.log, "create") <= 8
        assert server.lives.alive == []


async def test_a_refusal_for_haste_is_waited_out_by_everyone() -> None:
    async with serving() as server:
        limited = Refusal(429, "Too many requests", {"Retry-After": "1"})
        server.faults.add("create", Fault(refusal=limited), times=3)
        async with backend_with() as backend:
            assert len(await live_at_once(backend, 6)) == 6
        times = server.log.times("create")
        assert len(times) == 9
        assert max(after - before for before, after in itertools.pairwise(times)) > 0.9
        assert server.lives.alive == []


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "cpu must be positive", CreateError),
        (400, "Total CPU limit exceeded", Capacity),
        (401, "Invalid credentials", ConfigError),
        (403, "Forbidden resource", ConfigError),
        (403, "Organization quota reached", Capacity),
        (404, "Snapshot base not found", ImageNotFound),
        (409, "name is taken", CreateError),
        (422, "no such region", CreateError),
        (500, "oops", BackendUnavailable),
        (502, "oops", BackendUnavailable),
        (503, "try later", BackendUnavailable),
        (504, "try later", BackendUnavailable),
    ],
)
async def test_a_refused_creation_is_typed_and_the_next_one_works(
    status: int, message: str, expected: type[HermesRLError]
) -> None:
    async with serving() as server, backend_with() as backend:
        server.faults.add("create", Fault(refusal=Refusal(status, message)), times=10)
        with pytest.raises(expected, match=message):
            await backend.create(SPEC)
        server.faults.clear()
        assert await live_at_once(backend, 1) == ["0"]
        assert server.lives.alive == []


async def test_a_creation_that_is_too_slow_is_removed_when_it_comes() -> None:
    async with serving() as server, backend_with() as backend:
        server.faults.add("create", Fault(delay_s=2.0))
        with pytest.raises(CreateError, match="not up and healthy within 1 s"):
            await backend.create(replace(SPEC, start_timeout_s=1.0))
        assert len(server.log.times("created")) == 1
        assert server.lives.alive == []


async def test_a_cancelled_creation_is_caught_and_removed() -> None:
    async with serving() as server, backend_with() as backend:
        server.faults.add("create", Fault(delay_s=1.0))
        with anyio.move_on_after(0.3):
            await backend.create(SPEC)
        assert len(server.log.times("created")) == 1
        assert server.lives.alive == []


async def test_an_answer_that_is_lost_leaves_no_sandbox() -> None:
    """The server makes the sandbox but its answer is an error: found again by its label."""
    async with serving() as server, backend_with() as backend:
        made = server.make

        async def made_then_lost(asked: dict[str, Any]) -> Any:
            await made(asked)
            raise OSError("lost")

        server.make = made_then_lost  # type: ignore[method-assign]
        with pytest.raises(BackendUnavailable):
            await backend.create(SPEC)
        assert len(server.log.times("created")) == 1
        assert server.lives.alive == []


async def test_a_sandbox_deleted_by_someone_else() -> None:
    async with serving() as server, backend_with() as backend:
        sandbox = await backend.create(SPEC)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.end, server.lives.alive[0], "deleted")
            with pytest.raises(SandboxGone) as caught, anyio.fail_after(15):
                await sandbox.exec("sleep 60", timeout_s=60)
        assert (caught.value.cause, caught.value.by_agent) == ("removed", False)


async def test_an_agent_that_kills_the_supervisor_has_broken_its_own_sandbox() -> None:
    async with serving() as server, backend_with() as backend:
        sandbox = await backend.create(SPEC)
        with pytest.raises(SandboxGone) as caught:
            await sandbox.exec("kill -9 $PPID; sleep 60", timeout_s=60)
        assert (caught.value.cause, caught.value.by_agent) == ("killed", True)
        assert server.lives.alive == []


async def test_what_is_asked_for_reaches_daytona() -> None:
    async with serving() as server, backend_with(target="eu", disk_gb=5) as backend:
        spec = replace(SPEC, cpus=1.5, memory_mb=1500, network="none", lease_s=100.0)
        await backend.create(spec)
        asked = server.lives.alive[0].asked
        assert (asked["cpu"], asked["memory"], asked["disk"]) == (2, 2, 5)
        assert (asked["target"], asked["networkBlockAll"]) == ("eu", True)
        assert (asked["ttlMinutes"], asked["autoStopInterval"]) == (2, 2)
        assert asked["autoDeleteInterval"] == 0
        assert asked["user"] == "root"
        assert asked["buildInfo"]["dockerfileContent"] == "FROM hermes-test:latest\n"
        labels = server.lives.alive[0].labels
        assert labels["hermes.run"] == "test-run"
        assert int(labels["hermes.deadline"]) - time.time() == pytest.approx(100, abs=10)


async def test_a_snapshot_is_used_where_no_image_is_named() -> None:
    async with serving() as server, backend_with(snapshot="daytona-small") as backend:
        await backend.create(replace(SPEC, image=None))
        assert server.lives.alive[0].asked["snapshot"] == "daytona-small"
        with pytest.raises(Unsupported, match="its own limits"):
            await backend.create(replace(SPEC, image=None, cpus=2.0))


async def test_no_variable_of_the_task_is_seen_by_daytona() -> None:
    async with serving() as server, backend_with() as backend:
        sandbox = await backend.create(replace(SPEC, env={"KEY": "hunter2"}))
        shown = await sandbox.exec("echo $KEY; cat /proc/$PPID/cmdline", timeout_s=20)
        assert shown.text.startswith("hunter2\n")
        assert shown.text.count("hunter2") == 1
        assert "hunter2" not in str(server.lives.alive[0].asked)


async def test_a_sandbox_in_use_outlives_its_idle_timer_and_then_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hermes_rl.backends.cloud_session.TOUCH_INTERVAL_S", 0.3)
    async with serving(minute_s=1.0) as server, backend_with(auto_stop_minutes=1) as backend:
        sandbox = await backend.create(SPEC)
        await anyio.sleep(2.5)
        assert (await sandbox.exec("echo on", timeout_s=10)).text == "on\n"
        assert len(server.log.times("touch")) >= 4


async def test_what_daytona_cannot_run_is_refused_by_name() -> None:
    async with serving(), backend_with() as backend:
        with pytest.raises(Unsupported, match="own command"):
            await backend.create(replace(SPEC, image_command=True))
        with pytest.raises(Unsupported, match="pause"):
            await backend.create(replace(SPEC, needs=frozenset({Capability.PAUSE})))
        with pytest.raises(ConfigError, match="terminal_image"):
            await backend.create(replace(SPEC, image=None))


async def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving():
        monkeypatch.delenv("DAYTONA_API_KEY")
        with pytest.raises(ConfigError, match="DAYTONA_API_KEY"):
            await backend_with().__aenter__()
        checks = {check.name: check for check in await backend_with().doctor()}
        assert not checks["daytona key"].ok


async def test_a_refused_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving():
        monkeypatch.setenv("DAYTONA_API_KEY", "dtn_wrong")
        with pytest.raises(ConfigError, match="DAYTONA_API_KEY"):
            await backend_with().__aenter__()


async def test_doctor_reaches_the_account() -> None:
    async with serving():
        assert [check.ok for check in await backend_with().doctor()] == [True] * 4


async def test_a_killed_engine_leaves_nothing_past_its_lease() -> None:
    """Daytona counts in minutes: here a minute lasts eight seconds."""
    async with serving(minute_s=8.0) as server:
        engine = killed_engine("daytona", lease_s=60, count=2, environment=variables(server))
        async with engine as killed_at_s:
            sandboxes = server.lives.alive
            assert len(sandboxes) == 2
            with anyio.fail_after(15):
                for sandbox in sandboxes:
                    await sandbox.ended.wait()
        created_at_s = server.log.times("created")
        assert all(at_s < killed_at_s for at_s in created_at_s)
        assert max(server.log.times("gone")) - max(created_at_s) < 8 + 2


async def test_a_sweep_removes_what_a_killed_engine_left() -> None:
    async with serving() as server:
        engine = killed_engine("daytona", lease_s=600, count=2, environment=variables(server))
        async with engine:
            left = {sandbox.id for sandbox in server.lives.alive}
            async with backend_with("next-run") as backend:
                mine = await backend.create(SPEC)
                with anyio.fail_after(20):
                    for sandbox in [server.lives.sandboxes[id] for id in left]:
                        await sandbox.ended.wait()
                assert await mine.ping() > 0


async def test_a_server_that_is_killed_ends_its_sandboxes_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "hermes_rl.testing.daytona_server"
    for name, value in variables(DaytonaServer()).items():
        monkeypatch.setenv(name, value)
    with server_process(module, tmp_path) as (server, url):
        monkeypatch.setenv("DAYTONA_API_URL", url)
        port = int(url.rpartition(":")[2].partition("/")[0])
        async with backend_with() as backend:
            sandbox = await backend.create(SPEC)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_lose, sandbox)
                await anyio.sleep(0.5)
                server.send_signal(signal.SIGKILL)
                await anyio.to_thread.run_sync(server.wait)
            with server_process(module, tmp_path, port=port):
                assert sorted(await live_at_once(backend, 2)) == ["0", "1"]


async def _lose(sandbox: Any) -> None:
    with pytest.raises(SandboxError) as caught:
        await sandbox.exec("sleep 60", timeout_s=60)
    assert isinstance(caught.value, SandboxGone)
    assert caught.value.retryable


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
class TestImages:
    async def test_a_dockerfile_with_its_context(self, tmp_path: Path) -> None:
        (tmp_path / "words.txt").write_text("seven words\n")
        (tmp_path / "Dockerfile").write_text(
            "FROM hermes-test:latest\nWORKDIR /here\nCOPY words.txt /here/\nENV SEEN=yes\n"
        )
        spec = replace(CONTAINER, image=None, dockerfile_dir=tmp_path)
        with allow_loopback_storage():
            async with serving(in_containers=True) as server, backend_with() as backend:
                box = await backend.create(spec)
                result = await box.exec("cat words.txt; echo $SEEN; pwd", timeout_s=20)
                assert result.text == "seven words\nyes\n/here\n"
                assert len(server.storage.objects) == 1

    async def test_an_image_that_is_not_there(self) -> None:
        async with serving(in_containers=True) as server, backend_with() as backend:
            with pytest.raises(ImageNotFound, match="no-such-image"):
                await backend.create(replace(CONTAINER, image="no-such-image:1"))
            assert server.lives.alive == []

    async def test_a_build_that_fails(self, tmp_path: Path) -> None:
        (tmp_path / "Dockerfile").write_text("FROM hermes-test:latest\nRUN echo told; exit 7\n")
        async with serving(in_containers=True) as server, backend_with() as backend:
            with pytest.raises(ImageBuildFailed) as caught:
                await backend.create(replace(CONTAINER, image=None, dockerfile_dir=tmp_path))
            assert "exit 7" in caught.value.output
            assert server.lives.alive == []

    async def test_an_image_without_python(self) -> None:
        async with serving(in_containers=True), backend_with() as backend:
            with pytest.raises(CreateError, match="no python3"):
                await backend.create(replace(CONTAINER, image="hermes-bare:latest"))


async def test_the_oracle_through_the_command(tmp_path: Path) -> None:
    async with serving() as server:
        words = ("evaluate", "terminal-test", "--oracle", "--env.terminal_backend", "daytona")
        few = ("--env.task_filter", "split=train", "--env.terminal_image", "hermes-test:latest")
        done = await anyio.to_thread.run_sync(
            lambda: run(tmp_path, *words, *few, **variables(server))
        )
        assert done.returncode == 0, done.stderr
        assert len(server.log.times("created")) == 3
        assert server.lives.alive == []


def test_entering_without_the_sdk_names_the_extra(tmp_path: Path) -> None:
    """In a process of its own, where the SDK cannot be imported."""
    program = (
        "import sys; sys.modules['daytona'] = sys.modules['modal'] = None\n"
        "import anyio\n"
        "from hermes_rl.errors import MissingExtra\n"
        "from hermes_rl.sandbox import BackendSettings, open_backend\n"
        "async def main():\n"
        "    for name in ('modal', 'daytona'):\n"
        "        backend = open_backend(name, BackendSettings(run_id='x'))\n"
        "        try:\n"
        "            async with backend: pass\n"
        "        except MissingExtra as error:\n"
        "            print(error)\n"
        "        print([check.fix for check in await backend.doctor()])\n"
        "anyio.run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    for extra in ("hermes_rl[modal]", "hermes_rl[daytona]"):
        assert done.stdout.count(f"pip install '{extra}'") == 2
