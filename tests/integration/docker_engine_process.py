"""An engine to be killed: makes containers in the states a test asks for, then waits.

    python docker_engine_process.py RUN_ID CACHE_DIR STATE...

Prints one line per state reached: created, running, paused, transferring, starting, done.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from hermes_rl.backends.docker import create_backend
from hermes_rl.backends.docker_container import container_config
from hermes_rl.backends.docker_session import DockerSession
from hermes_rl.sandbox import BackendSettings, SandboxSpec

SPEC = SandboxSpec(image="hermes-test:latest", memory_mb=256, network="none")


async def _reach(session: DockerSession, state: str) -> None:
    """Bring one container into a state and stay there."""
    if state == "created":
        image = await session._images.image_for(SPEC)
        config = container_config(session._plan(SPEC, image))
        await session._engine.create(f"hermes-killed-{session._settings.run_id}", config)
    elif state == "starting":
        print(state, flush=True)
        while True:
            await (await session.create(SPEC)).close()
    else:
        sandbox = await session.create(SPEC)
        if state == "paused":
            async with sandbox.pause():
                print(state, flush=True)
                await anyio.sleep_forever()
        if state == "transferring":
            print(state, flush=True)
            while True:
                await sandbox.write("/tmp/blob", bytes(8 << 20))
    print(state, flush=True)


async def main() -> None:
    run_id, cache_dir, *states = sys.argv[1:]
    settings = BackendSettings(run_id=run_id, cache_dir=Path(cache_dir))
    async with create_backend(settings) as backend, anyio.create_task_group() as tasks:
        session = backend._connected()
        for state in states:
            tasks.start_soon(_reach, session, state)
        await anyio.sleep_forever()


anyio.run(main)
