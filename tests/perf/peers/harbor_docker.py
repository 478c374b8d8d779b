"""Harbor: ``docker compose exec`` per command."""

import asyncio
import tempfile
import time
import uuid
from pathlib import Path

from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths
from meter import COMMAND, IMAGE, container_named, serve


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment_dir, trial_dir = Path(folder, "environment"), Path(folder, "trial")
        environment_dir.mkdir()
        trial_dir.mkdir()
        session = f"hermes-peer-{uuid.uuid4().hex[:8]}"
        paths = TrialPaths(trial_dir)
        paths.mkdir()
        began_s = time.perf_counter()
        box = DockerEnvironment(
            environment_dir, "peer", session, paths, EnvironmentConfig(docker_image=IMAGE)
        )
        try:
            await box.start(force_build=False)

            async def run() -> str:
                return str((await box.exec(COMMAND)).stdout)

            await serve("harbor", began_s, container_named(session), run)
        finally:
            await box.stop(delete=True)


asyncio.run(main())
