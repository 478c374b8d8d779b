"""The modal backend with the real SDK, against a loopback server that runs commands for real."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

pytest.importorskip("modal", reason="needs hermes_rl[modal]")

from grpclib import Status

from hermes_rl.backends.modal import create_backend
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
from hermes_rl.testing.loopback_cloud import Fault
from hermes_rl.testing.modal_server import ModalServer, refusal

from .cloud_checks import SPEC, killed_engine, live_at_once, most_at_once, server_process
from .evaluate_process import run

CREATE = "SandboxCreateV2"
CONTAINER = replace(SPEC, network="none")
FAST = {"creations_per_s": 200.0, "creation_burst": 20}


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[ModalServer]:
    async with ModalServer(**options) as server:
        with server.environment():
            yield server


def backend_with(
    run_id: str = "test-run", *, starting: int | None = None, **options: Any
) -> Backend:
    return create_backend(
        BackendSettings(run_id=run_id, max_starting=starting, options={**FAST, **options})
    )


async def test_forty_at_once_keep_the_rate_and_the_limit_on_starting() -> None:
    async with serving(create_s=0.1) as server:
        async with backend_with(starting=8, creations_per_s=15.0, creation_burst=5) as backend:
            printed = await live_at_once(backend, 40)
        assert sorted(map(int, printed)) == list(range(40))
        assert len(server.log.times(CREATE)) == 40
        assert server.log.most_within(CREATE, 1.0) <= 5 + 15 + 1
        assert most_at_once(server.log, CREATE) <= 8
        assert server.lives.alive == []


async def test_a_throttled_creation_is_waited_out_by_everyone() -> None:
    async with serving() as server:
        limited = refusal(Status.RESOURCE_EXHAUSTED, "slow down", retry_after_s=1.0)
        server.faults.add(CREATE, Fault(refusal=limited), times=3)
        async with backend_with() as backend:
            assert len(await live_at_once(backend, 6)) == 6
        times = server.log.times(CREATE)
        assert len(times) == 9
        assert max(after - before for before, after in itertools.pairwise(times)) > 0.9
        assert server.lives.alive == []


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (Status.UNAUTHENTICATED, "token revoked", ConfigError),
        (Status.PERMISSION_DENIED, "not your workspace", ConfigError),
        (Status.UNIMPLEMENTED, "no such method", ConfigError),
        (Status.RESOURCE_EXHAUSTED, "workspace limit of 100 containers", Capacity),
        (Status.INVALID_ARGUMENT, "cpu must be positive", CreateError),
        (Status.FAILED_PRECONDITION, "app is stopped", CreateError),
        (Status.ALREADY_EXISTS, "name is taken", CreateError),
        (Status.NOT_FOUND, "no such app", CreateError),
        (Status.UNAVAILABLE, "try later", BackendUnavailable),
        (Status.INTERNAL, "oops", BackendUnavailable),
        (Status.UNKNOWN, "oops", BackendUnavailable),
        (Status.DATA_LOSS, "oops", SandboxError),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, Status) else None,
)
async def test_a_refused_creation_is_typed_and_the_next_one_works(
    status: Status, message: str, expected: type[HermesRLError]
) -> None:
    async with serving() as server, backend_with() as backend:
        server.faults.add(CREATE, Fault(refusal=refusal(status, message)), times=4)
        with pytest.raises(expected, match=message):
            await backend.create(SPEC)
        server.faults.clear()
        assert await live_at_once(backend, 1) == ["0"]
        assert server.lives.alive == []


async def test_a_creation_that_is_too_slow_is_removed_when_it_comes() -> None:
    async with serving() as server, backend_with() as backend:
        server.faults.add(CREATE, Fault(delay_s=2.0))
        with pytest.raises(CreateError, match="not up and healthy within 1 s"):
            await backend.create(replace(SPEC, start_timeout_s=1.0))
        assert [event.detail for event in server.log.events if event.kind == "gone"] == ["deleted"]
        assert server.lives.alive == []


async def test_a_cancelled_creation_is_caught_and_removed() -> None:
    async with serving() as server, backend_with() as backend:
        server.faults.add(CREATE, Fault(delay_s=1.0))
        with anyio.move_on_after(0.3):
            await backend.create(SPEC)
        assert len(server.log.times("created")) == 1
        assert server.lives.alive == []


async def test_an_answer_that_is_lost_leaves_no_sandbox() -> None:
    """The server makes the sandbox but its answer is an error: found again by its tag."""
    async with serving() as server, backend_with() as backend:
        made = server.create

        async def made_then_lost(*words: Any, **options: Any) -> Any:
            await made(*words, **options)
            raise refusal(Status.INVALID_ARGUMENT, "lost")

        server.create = made_then_lost  # type: ignore[method-assign]
        with pytest.raises(CreateError, match="lost"):
            await backend.create(SPEC)
        assert len(server.log.times("created")) == 1
        assert server.lives.alive == []


@pytest.mark.parametrize(
    ("how", "cause"), [("timeout", "expired"), ("deleted", "removed"), ("idle", "unknown")]
)
async def test_why_a_sandbox_ended(how: str, cause: str) -> None:
    async with serving() as server, backend_with() as backend:
        sandbox = await backend.create(SPEC)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.end, server.lives.alive[0], how)
            with pytest.raises(SandboxGone) as caught, anyio.fail_after(15):
                await sandbox.exec("sleep 60", timeout_s=60)
        assert caught.value.cause == cause
        assert not caught.value.by_agent


async def test_an_agent_that_kills_the_supervisor_has_broken_its_own_sandbox() -> None:
    async with serving() as server, backend_with() as backend:
        sandbox = await backend.create(SPEC)
        with pytest.raises(SandboxGone) as caught:
            await sandbox.exec("kill -9 $PPID; sleep 60", timeout_s=60)
        assert (caught.value.cause, caught.value.by_agent) == ("killed", True)
        assert server.lives.alive == []


async def test_a_gpu_comes_with_the_older_kind_of_sandbox() -> None:
    async with serving() as server, backend_with(gpu="T4") as backend:
        sandbox = await backend.create(replace(SPEC, gpus=2))
        assert (await sandbox.exec("echo on", timeout_s=20)).text == "on\n"
        wanted = server.lives.alive[0].definition.resources.gpu_config
        assert (wanted.gpu_type, wanted.count) == ("T4", 2)
        assert server.log.times(CREATE) == []
        await sandbox.close()
        assert server.lives.alive == []


async def test_what_is_asked_for_reaches_modal() -> None:
    async with serving() as server, backend_with(region="us-east") as backend:
        spec = replace(SPEC, cpus=1.5, memory_mb=512, network="none", lease_s=100.2)
        await backend.create(spec)
        asked = server.lives.alive[0].definition
        resources = asked.resources
        assert (resources.milli_cpu, resources.milli_cpu_max) == (1500, 1500)
        assert (resources.memory_mb, resources.memory_mb_max) == (512, 512)
        assert list(asked.scheduler_placement.regions) == ["us-east"]
        blocked = type(asked.network_access).NetworkAccessType.Value("BLOCKED")
        assert asked.network_access.network_access_type == blocked
        assert asked.timeout_secs == 101
        labels = server.lives.alive[0].labels
        assert labels["hermes.run"] == "test-run"
        assert int(labels["hermes.deadline"]) - time.time() == pytest.approx(100, abs=10)


async def test_no_variable_of_the_task_is_a_secret_or_an_argument_there() -> None:
    async with serving() as server, backend_with() as backend:
        sandbox = await backend.create(replace(SPEC, env={"KEY": "hunter2"}))
        shown = await sandbox.exec("echo $KEY; cat /proc/$PPID/cmdline", timeout_s=20)
        assert shown.text.startswith("hunter2\n")
        assert shown.text.count("hunter2") == 1
        assert server.log.times("SecretGetOrCreate") == []


async def test_what_modal_cannot_run_is_refused_by_name() -> None:
    async with serving(), backend_with() as backend:
        with pytest.raises(Unsupported, match="24 hours"):
            await backend.create(replace(SPEC, lease_s=90_000.0))
        with pytest.raises(Unsupported, match="own command"):
            await backend.create(replace(SPEC, image_command=True))
        with pytest.raises(Unsupported, match="changes"):
            await backend.create(replace(SPEC, needs=frozenset({Capability.CHANGES})))


@pytest.mark.parametrize("missing", ["MODAL_TOKEN_ID", "MODAL_TOKEN_SECRET"])
async def test_a_missing_token_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving():
        monkeypatch.delenv(missing)
        with pytest.raises(ConfigError, match="MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"):
            await backend_with().__aenter__()
        checks = {check.name: check for check in await backend_with().doctor()}
        assert not checks["modal tokens"].ok
        assert missing in checks["modal tokens"].detail


async def test_a_refused_token_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving():
        monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-wrong")
        with pytest.raises(ConfigError, match="MODAL_TOKEN_SECRET"):
            await backend_with().__aenter__()


async def test_doctor_reaches_the_account() -> None:
    async with serving():
        assert [check.ok for check in await backend_with().doctor()] == [True] * 4


async def test_a_killed_engine_leaves_nothing_past_its_lease() -> None:
    async with serving() as server:
        environment = _variables(server)
        engine = killed_engine("modal", lease_s=10, count=2, environment=environment)
        async with engine as killed_at_s:
            sandboxes = server.lives.alive
            assert len(sandboxes) == 2
            with anyio.fail_after(15):
                for sandbox in sandboxes:
                    await sandbox.ended.wait()
        created_at_s = server.log.times("created")
        gone_at_s = server.log.times("gone")
        assert all(at_s < killed_at_s for at_s in created_at_s)
        assert max(gone_at_s) - max(created_at_s) < 10 + 2


async def test_a_sweep_removes_what_a_killed_engine_left() -> None:
    async with serving() as server:
        environment = _variables(server)
        async with killed_engine("modal", lease_s=600, count=2, environment=environment):
            left = {sandbox.id for sandbox in server.lives.alive}
            async with backend_with("next-run") as backend:
                mine = await backend.create(SPEC)
                with anyio.fail_after(20):
                    for sandbox in [server.lives.sandboxes[id] for id in left]:
                        await sandbox.ended.wait()
                assert await mine.ping() > 0
        assert {e.sandbox for e in server.log.events if e.detail == "deleted"} >= left


def _variables(server: ModalServer) -> dict[str, str]:
    with server.environment() as variables:
        return dict(variables)


async def test_a_server_that_is_killed_ends_its_sandboxes_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "hermes_rl.testing.modal_server"
    for name, value in _variables(ModalServer()).items():
        monkeypatch.setenv(name, value)
    with server_process(module, tmp_path) as (server, url):
        monkeypatch.setenv("MODAL_SERVER_URL", url)
        async with backend_with() as backend:
            sandbox = await backend.create(SPEC)
            failures: list[SandboxError] = []

            async def work() -> None:
                with pytest.raises(SandboxError) as caught:
                    await sandbox.exec("sleep 60", timeout_s=60)
                failures.append(caught.value)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                await anyio.sleep(0.5)
                server.send_signal(signal.SIGKILL)
                await anyio.to_thread.run_sync(server.wait)
                port = int(url.rpartition(":")[2])
                tasks.start_soon(_serve_again, module, tmp_path, port, backend)
            assert isinstance(failures[0], SandboxGone)
            assert failures[0].retryable


async def _serve_again(module: str, tmp_path: Path, port: int, backend: Backend) -> None:
    with server_process(module, tmp_path, port=port):
        with anyio.fail_after(60):
            assert sorted(await live_at_once(backend, 2)) == ["0", "1"]


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
class TestImages:
    async def test_a_dockerfile_is_built_once_however_many_want_it(self, tmp_path: Path) -> None:
        (tmp_path / "words.txt").write_text("seven words\n")
        (tmp_path / "Dockerfile").write_text(
            "FROM hermes-test:latest\nWORKDIR /here\nCOPY words.txt /here/\nENV SEEN=yes\n"
        )
        spec = replace(CONTAINER, image=None, dockerfile_dir=tmp_path)
        async with serving(in_containers=True) as server, backend_with() as backend:
            boxes = [await backend.create(spec) for _ in range(2)]
            for box in boxes:
                result = await box.exec("cat words.txt; echo $SEEN; pwd", timeout_s=20)
                assert result.text == "seven words\nyes\n/here\n"
            assert len(server.log.times("ImageJoinStreaming")) <= 2

    async def test_an_image_that_is_not_there(self) -> None:
        async with serving(in_containers=True), backend_with() as backend:
            with pytest.raises(ImageNotFound, match="no-such-image"):
                await backend.create(replace(CONTAINER, image="no-such-image:1"))

    async def test_a_build_that_fails(self, tmp_path: Path) -> None:
        (tmp_path / "Dockerfile").write_text("FROM hermes-test:latest\nRUN echo told; exit 7\n")
        async with serving(in_containers=True), backend_with() as backend:
            with pytest.raises(ImageBuildFailed) as caught:
                await backend.create(replace(CONTAINER, image=None, dockerfile_dir=tmp_path))
            assert "exit 7" in caught.value.output

    async def test_an_image_without_python(self) -> None:
        async with serving(in_containers=True), backend_with() as backend:
            with pytest.raises(CreateError, match=r"no python3.*add_python"):
                await backend.create(replace(CONTAINER, image="hermes-bare:latest"))


async def test_no_image_at_all_is_told() -> None:
    async with serving(), backend_with() as backend:
        with pytest.raises(ConfigError, match="terminal_image"):
            await backend.create(replace(SPEC, image=None))


async def test_the_oracle_through_the_command(tmp_path: Path) -> None:
    async with serving() as server:
        words = ("evaluate", "terminal-test", "--oracle", "--env.terminal_backend", "modal")
        few = ("--env.task_filter", "split=train", "--env.terminal_image", "hermes-test:latest")
        done = await anyio.to_thread.run_sync(
            lambda: run(tmp_path, *words, *few, **_variables(server))
        )
        assert done.returncode == 0, done.stderr
        assert "1.0" in done.stdout
        assert len(server.log.times("created")) == 3
        assert server.lives.alive == []
