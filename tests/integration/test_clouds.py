"""Both cloud backends with their real SDKs, against loopback servers that run commands for real."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import (
    BackendUnavailable,
    ChannelLost,
    ConfigError,
    CreateError,
    ImageBuildFailed,
    ImageNotFound,
    RateLimited,
    SandboxGone,
    Unsupported,
)
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.results import RolloutResult
from hermes_rl.sandbox import Capability, Sandbox
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.loopback_cloud import Fault

from .clouds import (
    CLOUDS,
    FAST,
    SPEC,
    Cloud,
    killed_engine,
    live_at_once,
    lost_in,
    most_at_once,
    server_process,
)
from .evaluate_process import environment

pytestmark = pytest.mark.parametrize("cloud", CLOUDS)

CONTAINER = replace(SPEC, network="none")


# Creating


async def test_forty_at_once_keep_the_rate_and_the_limit_on_starting(cloud: Cloud) -> None:
    create = cloud.calls[0]
    async with cloud.serving(create_s=0.1) as server:
        options = {"creations_per_s": 20.0, "creation_burst": 10}
        async with cloud.backend(starting=8, **options) as backend:
            assert await live_at_once(backend, 40) == list(range(40))
        assert len(server.log.times(create)) == 40
        assert server.log.most_within(create, 1.0) <= 10 + 20 + 1
        assert most_at_once(server.log, create) <= 8
        assert server.lives.alive == []


async def test_a_refusal_for_haste_is_waited_out_by_everyone(cloud: Cloud) -> None:
    create = cloud.calls[0]
    async with cloud.serving() as server:
        server.faults.add(create, Fault(refusal=cloud.too_fast), times=3)
        async with cloud.backend() as backend:
            assert len(await live_at_once(backend, 6)) == 6
        times = server.log.times(create)
        assert len(times) == 9
        assert max(after - before for before, after in itertools.pairwise(times)) > 0.9
        assert server.lives.alive == []


async def test_refused_creations_are_typed_and_the_next_one_works(cloud: Cloud) -> None:
    async with cloud.serving() as server, cloud.backend() as backend:
        for refused in cloud.refused:
            # More than once: the SDKs try some of them again themselves.
            server.faults.add(cloud.calls[0], Fault(refusal=refused.answer), times=10)
            with pytest.raises(refused.error, match=refused.message) as caught:
                await backend.create(SPEC)
            assert caught.type is refused.error, refused
            server.faults.clear()
        assert await live_at_once(backend, 1) == [0]
        assert server.lives.alive == []


async def test_a_creation_that_is_too_slow_is_removed_when_it_comes(cloud: Cloud) -> None:
    async with cloud.serving() as server, cloud.backend() as backend:
        server.faults.add(cloud.calls[0], Fault(delay_s=1.5))
        with pytest.raises(CreateError, match=r"not up and healthy within 0\.7 s"):
            await backend.create(replace(SPEC, start_timeout_s=0.7))
        assert [event.detail for event in server.log.events if event.kind == "gone"] == ["deleted"]
        assert server.lives.alive == []


async def test_a_cancelled_creation_is_caught_and_removed(cloud: Cloud) -> None:
    async with cloud.serving() as server, cloud.backend() as backend:
        server.faults.add(cloud.calls[0], Fault(delay_s=0.7))
        with anyio.move_on_after(0.3):
            await backend.create(SPEC)
        assert len(server.log.times("created")) == 1
        assert server.lives.alive == []


async def test_an_answer_that_is_lost_leaves_no_sandbox(cloud: Cloud) -> None:
    """The server makes the sandbox but its answer is an error: found again by its label."""
    async with cloud.serving() as server, cloud.backend() as backend:
        made = getattr(server, cloud.make)

        async def made_then_lost(*words: Any, **options: Any) -> Any:
            await made(*words, **options)
            raise OSError("lost")

        setattr(server, cloud.make, made_then_lost)
        with pytest.raises((BackendUnavailable, CreateError)):
            await backend.create(SPEC)
        assert len(server.log.times("created")) == 1
        assert server.lives.alive == []


async def test_no_variable_of_the_task_is_seen_by_the_vendor(cloud: Cloud) -> None:
    async with cloud.serving() as server, cloud.backend() as backend:
        sandbox = await backend.create(replace(SPEC, env={"KEY": "hunter2"}))
        shown = await sandbox.exec("echo $KEY; cat /proc/$PPID/cmdline", timeout_s=20)
        assert shown.text.startswith("hunter2\n")
        assert shown.text.count("hunter2") == 1
        assert "hunter2" not in str(server.lives.alive[0])


async def test_what_a_cloud_cannot_run_is_refused_by_name(cloud: Cloud) -> None:
    async with cloud.serving() as server, cloud.backend() as backend:
        with pytest.raises(Unsupported, match="own command"):
            await backend.create(replace(SPEC, image_command=True))
        for absent in (Capability.CHANGES, Capability.PAUSE):
            with pytest.raises(Unsupported, match=absent):
                await backend.create(replace(SPEC, needs=frozenset({absent})))
        with pytest.raises(ConfigError, match="terminal_image"):
            await backend.create(replace(SPEC, image=None))
        assert server.log.times(cloud.calls[0]) == []


# Ends


async def test_an_agent_that_kills_the_supervisor_has_broken_its_own_sandbox(cloud: Cloud) -> None:
    async with cloud.serving() as server, cloud.backend() as backend:
        error = await lost_in(await backend.create(SPEC), "kill -9 $PPID; sleep 60")
        assert isinstance(error, SandboxGone)
        assert (error.cause, error.by_agent) == ("killed", True)
        assert server.lives.alive == []


async def test_an_outpost_lost_before_any_command_is_started_again_once(cloud: Cloud) -> None:
    async with cloud.serving() as server, cloud.backend() as backend:
        sandbox = await backend.create(SPEC)
        await sandbox.write("kept", b"kept")
        (first,) = cloud.outposts(server)
        os.kill(first, signal.SIGSTOP)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_ping_in_vain, sandbox)
                await anyio.sleep(0.2)
                os.kill(first, signal.SIGKILL)
            # The next call waits for the new one.
            assert await sandbox.read("kept", max_bytes=10) == b"kept"
            assert (await sandbox.exec("cat kept", timeout_s=20)).text == "kept"
            assert len(server.log.times(cloud.calls[1])) == 2
            os.kill(cloud.outposts(server)[-1], signal.SIGKILL)
            assert isinstance(await lost_in(sandbox), SandboxGone)
        assert server.lives.alive == []


async def _ping_in_vain(sandbox: Sandbox) -> None:
    """A call under way is never made again."""
    with pytest.raises(ChannelLost, match="is started again"):
        await sandbox.ping(timeout_s=15)


async def test_an_outpost_that_ran_commands_is_not_started_again(cloud: Cloud) -> None:
    """What the agent had set and started went with it."""
    async with cloud.serving() as server, cloud.backend() as backend:
        sandbox = await backend.create(SPEC)
        await sandbox.exec("cd /tmp", timeout_s=20)
        os.kill(cloud.outposts(server)[0], signal.SIGKILL)
        assert isinstance(await lost_in(sandbox), SandboxGone)
        assert len(server.log.times(cloud.calls[1])) == 1
        assert server.lives.alive == []


async def test_an_outpost_that_cannot_be_started_again_was_the_end(cloud: Cloud) -> None:
    async with cloud.serving() as server, cloud.backend() as backend:
        sandbox = await backend.create(SPEC)
        unavailable = next(r for r in cloud.refused if r.error is BackendUnavailable)
        server.faults.add(cloud.calls[1], Fault(refusal=unavailable.answer), times=30)
        os.kill(cloud.outposts(server)[0], signal.SIGKILL)
        with anyio.fail_after(30):
            while not isinstance(await lost_in(sandbox), SandboxGone):
                await anyio.sleep(0.05)
        assert server.lives.alive == []


async def test_a_removal_that_is_refused_is_made_up_for(cloud: Cloud) -> None:
    async with cloud.serving() as server:
        async with cloud.backend() as backend:
            sandbox = await backend.create(SPEC)
            unavailable = next(r for r in cloud.refused if r.error is BackendUnavailable)
            server.faults.add(cloud.calls[2], Fault(refusal=unavailable.answer), times=10)
            await sandbox.close()
            assert len(server.lives.alive) == 1
            server.faults.clear()
            assert await live_at_once(backend, 1) == [0]
        assert server.lives.alive == []


async def test_a_sweep_names_only_what_it_removed(cloud: Cloud) -> None:
    async with cloud.serving() as server:
        with server.environment() as variables:
            engine = killed_engine(cloud.name, leases_s=[7200], environment=variables)
        async with engine:
            unavailable = next(r for r in cloud.refused if r.error is BackendUnavailable)
            server.faults.add(cloud.calls[2], Fault(refusal=unavailable.answer), times=100)
            async with cloud.backend("next-run") as backend:
                assert await backend.sweep() == []
                assert len(server.lives.alive) == 1
                server.faults.clear()
        assert server.lives.alive == []


async def test_a_killed_engine_leaves_nothing_past_its_lease_nor_past_a_sweep(
    cloud: Cloud,
) -> None:
    """In the sandboxes' timers, a minute lasts eight seconds."""
    async with cloud.serving(minute_s=8.0) as server:
        with server.environment() as variables:
            engine = killed_engine(cloud.name, leases_s=[7200, 60], environment=variables)
        async with engine as killed_at_s:
            long, short = server.lives.sandboxes.values()
            assert server.log.times("gone") == []
            with anyio.fail_after(60):
                await short.ended.wait()
            gone_at_s = server.log.times("gone")[0]
            assert gone_at_s > killed_at_s
            assert server.lives.alive == [long]
            async with cloud.backend("next-run") as backend:
                mine = await backend.create(SPEC)
                with anyio.fail_after(60):
                    await long.ended.wait()
                assert await mine.ping() > 0
        assert [event.detail for event in server.log.events if event.kind == "gone"] == [
            "timeout",
            "deleted",
            "deleted",
        ]


# Runs


def engine_on(cloud: Cloud, command: str) -> RolloutEngine:
    model = ScriptedModel(replay([call("terminal", {"command": command})]))
    config = EnvConfig(
        terminal_backend=cloud.name,
        terminal_image=SPEC.image,
        backend_options=FAST,
    )
    return RolloutEngine(config, model=model)


async def results_of(engine: RolloutEngine, count: int) -> Sequence[RolloutResult]:
    todo = [FakeTask(id=f"task-{number}") for number in range(count)]
    async with engine, engine.run(todo, max_workers=count) as stream:
        return [result async for result in stream]


async def test_a_run_among_all_documented_errors_has_typed_results(cloud: Cloud) -> None:
    """Every refusal meets one rollout at least; those that may be tried again are."""
    async with cloud.serving() as server:
        for refused in (each for each in cloud.refused if each.error is not ConfigError):
            server.faults.add(cloud.calls[0], Fault(refusal=refused.answer))
        server.faults.add(cloud.calls[0], Fault(refusal=cloud.too_fast))
        results = await results_of(engine_on(cloud, "echo on"), 12)
        assert len(results) == 12
        known = {each.error.__name__ for each in cloud.refused} | {RateLimited.__name__}
        failures = [result.failure for result in results if result.failure]
        failures += [failure for result in results for failure in result.retried]
        assert {failure.kind for failure in failures} <= known
        assert failures
        assert sum(result.status == "finished" for result in results) >= 6
        assert {result.status for result in results} <= {"finished", "errored"}
        assert server.lives.alive == []


async def test_a_slow_server_only_takes_longer(cloud: Cloud) -> None:
    async with cloud.serving() as server:
        server.faults.every_call_s = 0.2
        results = await results_of(engine_on(cloud, "echo on"), 3)
        assert [result.status for result in results] == ["finished"] * 3, results[0]
        assert server.lives.alive == []


async def test_a_server_that_is_killed_in_a_run_costs_a_retry_and_not_the_run(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_process(cloud, tmp_path) as (process, port):
        here = cloud.server(port=port)
        with here.environment():
            engine = engine_on(cloud, f"touch {tmp_path}/begun-$$; sleep 2; echo on")
            results: list[RolloutResult] = []

            async def work() -> None:
                results.extend(await results_of(engine, 3))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                with anyio.fail_after(120):
                    while len(list(tmp_path.glob("begun-*"))) < 3:
                        await anyio.sleep(0.05)
                process.send_signal(signal.SIGKILL)
                await anyio.to_thread.run_sync(process.wait)
                async with here:
                    while len(results) < 3:
                        await anyio.sleep(0.1)
                    assert here.lives.alive == []
    assert [result.status for result in results] == ["finished"] * 3
    kinds = {failure.kind for result in results for failure in result.retried}
    assert SandboxGone.__name__ in kinds
    assert kinds <= {SandboxGone.__name__, BackendUnavailable.__name__}


# Accounts


async def test_a_missing_secret_is_named(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in cloud.secrets:
        async with cloud.serving():
            with monkeypatch.context() as patch:
                patch.delenv(missing)
                with pytest.raises(ConfigError, match=" and ".join(cloud.secrets)):
                    await cloud.backend().__aenter__()
                with pytest.raises(ConfigError, match=" and ".join(cloud.secrets)):
                    await cloud.backend().records()
                failed = [check for check in await cloud.backend().doctor() if not check.ok]
                assert [missing in check.detail for check in failed] == [True]


async def test_a_refused_secret_is_named(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cloud.serving():
        monkeypatch.setenv(cloud.secret, "wrong")
        with pytest.raises(ConfigError, match=cloud.secret):
            await cloud.backend().__aenter__()
        with pytest.raises(ConfigError, match=cloud.secret):
            await cloud.backend().records()


async def test_doctor_reaches_the_account(cloud: Cloud) -> None:
    async with cloud.serving():
        assert [check.ok for check in await cloud.backend().doctor()] == [True] * 4


def test_entering_without_the_sdk_names_the_extra(cloud: Cloud, tmp_path: Path) -> None:
    """In a process of its own, where the SDK cannot be imported."""
    program = (
        "import sys; name = sys.argv[1]; sys.modules[name] = None\n"
        "import anyio\n"
        "from hermes_rl.errors import MissingExtra\n"
        "from hermes_rl.sandbox import BackendSettings, open_backend\n"
        "async def main():\n"
        "    backend = open_backend(name, BackendSettings(run_id='x'))\n"
        "    try:\n"
        "        async with backend: pass\n"
        "    except MissingExtra as error:\n"
        "        print(error)\n"
        "    print([check.fix for check in await backend.doctor()])\n"
        "anyio.run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, cloud.name],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.count(f"pip install 'hermes_rl[{cloud.name}]'") == 2


# Images, in containers


@pytest.mark.docker
@pytest.mark.usefixtures("docker_image")
class TestImages:
    async def test_a_dockerfile_with_its_context_is_built_once(
        self, cloud: Cloud, tmp_path: Path
    ) -> None:
        (tmp_path / "words.txt").write_text("seven words\n")
        (tmp_path / "Dockerfile").write_text(
            "FROM hermes-test:latest\nWORKDIR /here\nCOPY words.txt /here/\n"
            "ENV SEEN=yes\nUSER nobody"
        )
        spec = replace(CONTAINER, image=None, dockerfile_dir=tmp_path)
        async with cloud.serving(in_containers=True) as server, cloud.backend() as backend:
            for box in [await backend.create(spec) for _ in range(2)]:
                result = await box.exec("cat words.txt; echo $SEEN; pwd; id -un", timeout_s=20)
                assert result.text == "seven words\nyes\n/here\nroot\n"
            assert server.builds == 1

    async def test_nothing_in_it_is_called_sleep(self, cloud: Cloud) -> None:
        """Tests look for that, and agents end what they find: what keeps it up is no such thing."""
        async with cloud.serving(in_containers=True), cloud.backend() as backend:
            box = await backend.create(CONTAINER)
            command = "pgrep -x sleep; pkill -9 sleep; sleep 0.5; echo on"
            found = await box.exec(command, timeout_s=20)
            assert found.text == "on\n"

    async def test_images_that_cannot_be_had(self, cloud: Cloud, tmp_path: Path) -> None:
        (tmp_path / "Dockerfile").write_text("FROM hermes-test:latest\nRUN echo told; exit 7\n")
        async with cloud.serving(in_containers=True) as server, cloud.backend() as backend:
            with pytest.raises(ImageNotFound, match="no-such-image"):
                await backend.create(replace(CONTAINER, image="no-such-image:1"))
            with pytest.raises(ImageBuildFailed) as caught:
                await backend.create(replace(CONTAINER, image=None, dockerfile_dir=tmp_path))
            assert "exit 7" in caught.value.output
            assert server.lives.alive == []
