"""mini-swe-agent: ``docker exec`` per command."""

import asyncio
import os
import time

os.environ["MSWEA_SILENT_STARTUP"] = "1"

from meter import COMMAND, IMAGE, serve
from minisweagent.environments.docker import DockerEnvironment


async def main() -> None:
    began_s = time.perf_counter()
    box = DockerEnvironment(image=IMAGE, run_args=["--rm", "--network", "none"])

    async def run() -> str:
        return str(box.execute({"command": COMMAND})["output"])

    try:
        await serve("mini-swe-agent", began_s, str(box.container_id), run)
    finally:
        box.cleanup()


asyncio.run(main())
