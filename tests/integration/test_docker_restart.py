"""A daemon that is restarted, or killed, in the middle of a run."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from tests.conftest import require

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.backends import docker_outage
from hermes_rl.backends.docker import create_backend
from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import BackendLost, SandboxGone
from hermes_rl.model.scripted import ScriptedModel, call, say
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.testing.fake_tasks import FakeTask

from .docker_boxes import run_settings
from .second_daemon import IMAGE, SecondDaemon

pytestmark = pytest.mark.docker

SPEC = SandboxSpec(image=IMAGE, network="none", memory_mb=256)
BOXES = 4
CALLS = 6


@pytest.fixture(scope="module")
def daemon() -> Iterator[SecondDaemon]:
    found = shutil.which("dockerd") is not None and os.geteuid() == 0
    require(found, "needs root and dockerd, to start a daemon of its own")
    interfaces = os.listdir("/sys/class/net")
    # Its socket's path must be short, so pytest's own directory will not do.
    daemon = SecondDaemon(Path(tempfile.mkdtemp(prefix="hermes-dockerd-")))
    try:
        daemon.start()
        daemon.import_tiny_image()
        yield daemon
    finally:
        daemon.close()
    assert ("docker0" in interfaces) == ("docker0" in os.listdir("/sys/class/net"))


@pytest.fixture(autouse=True)
def docker_host(daemon: SecondDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", daemon.host)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_what_a_sandbox_sees_of_a_restart(
    daemon: SecondDaemon, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_outage, "OUTAGE_LIMIT_S", 0.0)
    async with create_backend(run_settings(tmp_path)) as backend:
        before = await backend.create(SPEC)
        assert (await before.exec("echo up", timeout_s=60)).text == "up\n"
        await anyio.to_thread.run_sync(daemon.stop, number)
        with pytest.raises(SandboxGone) as gone:
            await before.exec("echo still there", timeout_s=60)
        assert (gone.value.by_agent, gone.value.retryable) == (False, True)
        with pytest.raises(BackendLost, match="Start it"):
            await backend.create(SPEC)
        await before.close()
        await anyio.to_thread.run_sync(daemon.start)
        after = await backend.create(SPEC)
        assert (await after.exec("echo up again", timeout_s=60)).text == "up again\n"
    assert daemon.containers() == []


async def test_a_run_survives_a_restart_with_the_right_totals(daemon: SecondDaemon) -> None:
    working = anyio.Event()

    def next_turn(messages: object) -> object:
        assert isinstance(messages, list)
        spoken = sum(message["role"] == "assistant" for message in messages)
        if spoken == 2:
            working.set()
        done = call("terminal", {"command": f"echo {spoken} >> ~/log; sleep 0.3; cat ~/log"})
        return done if spoken < CALLS else say("done")

    async def reward(result: object, ctx: object) -> float:
        seen = await ctx.terminal("cat ~/log")  # type: ignore[attr-defined]
        return float(seen["output"].split() == [str(number) for number in range(CALLS)])

    config = EnvConfig(terminal_backend="docker", terminal_network="none", max_agent_turns=20)
    model = ScriptedModel(next_turn)  # type: ignore[arg-type]
    tasks = [FakeTask(id=f"t{number}", sandbox=SPEC, reward=reward) for number in range(BOXES)]
    async with RolloutEngine(config, model=model) as engine, anyio.create_task_group() as group:

        async def restart() -> None:
            await working.wait()
            await anyio.to_thread.run_sync(daemon.stop, signal.SIGTERM)
            await anyio.to_thread.run_sync(daemon.start)

        group.start_soon(restart)
        async with engine.run(tasks, max_workers=BOXES) as stream:
            results = [result async for result in stream]
    assert sorted((result.task_id, result.score) for result in results) == [
        (f"t{number}", 1.0) for number in range(BOXES)
    ]
    assert all(result.retried for result in results)
    assert daemon.containers() == []


async def test_a_daemon_that_is_away_costs_no_tries(
    daemon: SecondDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """However long it takes: nobody's tries are spent on asking in vain."""
    tasks = [FakeTask(id=f"t{number}", sandbox=SPEC) for number in range(3 * BOXES)]
    model = ScriptedModel(lambda messages: say("done"))
    config = EnvConfig(terminal_backend="docker", terminal_network="none")
    async with RolloutEngine(config, model=model, retry_delay_s=0.01) as engine:
        await anyio.to_thread.run_sync(daemon.stop, signal.SIGKILL)
        async with anyio.create_task_group() as group:

            async def come_back() -> None:
                while "waiting for it" not in caplog.text:
                    await anyio.sleep(0.05)
                await anyio.sleep(2)
                await anyio.to_thread.run_sync(daemon.start)

            group.start_soon(come_back)
            async with engine.run(tasks, max_workers=BOXES) as stream:
                results = [result async for result in stream]
    assert {result.status for result in results} == {"finished"}
    assert not any(result.retried for result in results)
    assert "answers again" in caplog.text
    assert daemon.containers() == []


async def test_a_daemon_that_stays_away_ends_the_run(
    daemon: SecondDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_outage, "OUTAGE_LIMIT_S", 2.0)
    config = EnvConfig(terminal_backend="docker", terminal_network="none")
    model = ScriptedModel(lambda messages: say("done"))
    tasks = [FakeTask(id=f"t{number}", sandbox=SPEC) for number in range(3 * BOXES)]
    results = []
    async with RolloutEngine(config, model=model) as engine:
        await anyio.to_thread.run_sync(daemon.stop, signal.SIGKILL)
        with pytest.raises(BackendLost):
            async with engine.run(tasks, max_workers=BOXES) as stream:
                results = [result async for result in stream]
    assert results == []
    await anyio.to_thread.run_sync(daemon.start)
