"""Programs that run on uvloop, as most web servers do: sandboxes and engine work there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hermes_rl import EnvConfig, RolloutEngine, SandboxSpec, ServerConfig
from hermes_rl.sandbox import BackendSettings, Sandbox, open_backend
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.model_server import answer_in_turn, call_tool, say, serve_model

uvloop = pytest.importorskip("uvloop")
PATIENCE_S = 60.0


async def _use(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("echo up >up; cat up", timeout_s=PATIENCE_S)).text == "up\n"
    await sandbox.write("large", bytes(3 << 20))
    assert await sandbox.read("large", max_bytes=4 << 20) == bytes(3 << 20)
    async with sandbox.stream("cat", timeout_s=PATIENCE_S) as process:
        await process.write(b"there\n")
        assert (await anext(aiter(process))).data == b"there\n"
        await process.write_eof()
        assert (await process.wait()).exit_code == 0
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(sandbox.exec("sleep 300", timeout_s=300), 0.2)
    assert await sandbox.ping() >= 0


async def _open_and_use(backend: str, spec: SandboxSpec, settings: BackendSettings) -> None:
    async with asyncio.timeout(2 * PATIENCE_S), open_backend(backend, settings) as opened:
        sandbox = await opened.create(spec)
        try:
            await _use(sandbox)
        finally:
            await sandbox.close()


@pytest.mark.docker
def test_docker_sandboxes_work(docker_image: str, cache_dir: Path) -> None:
    settings = BackendSettings(run_id="uvloop", cache_dir=cache_dir)
    uvloop.run(_open_and_use("docker", SandboxSpec(image=docker_image), settings))


def test_local_sandboxes_work(tmp_path: Path) -> None:
    settings = BackendSettings(run_id="uvloop", cache_dir=tmp_path)
    uvloop.run(_open_and_use("local", SandboxSpec(), settings))


def test_an_engine_works() -> None:
    async def play() -> str:
        turns = [call_tool("terminal", {"command": "echo from uvloop"}), say("done")]
        async with serve_model(answer_in_turn(turns)) as server:
            servers = [ServerConfig(base_url=server.base_url, model_name="m")]
            config = EnvConfig(terminal_backend="local")
            async with RolloutEngine(config, servers) as engine:
                result = await engine.rollout(FakeTask())
        assert result.status == "finished", result.failure
        assert result.agent is not None
        return str(result.agent.messages)

    assert "from uvloop" in uvloop.run(play())
