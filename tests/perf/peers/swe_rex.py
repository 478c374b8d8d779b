"""SWE-ReX: a server in the sandbox, a shell under pexpect.

The server's packages are mounted from this interpreter, since the image does not have them and
nothing can be downloaded; how it is started is SWE-ReX's own affair.
"""

import asyncio
import sysconfig
import tempfile
import time
from pathlib import Path

from meter import COMMAND, IMAGE, container_named, serve
from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest

START = """#!/usr/bin/python3
import sys

from swerex.server import main

sys.argv[0] = "swerex-remote"
main()
"""


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "swerex-remote")
        program.write_text(START)
        program.chmod(0o755)
        packages = sysconfig.get_path("purelib")
        mounts = ["-v", f"{packages}:/peer:ro", "-v", f"{program}:/usr/local/bin/swerex-remote:ro"]
        began_s = time.perf_counter()
        deployment = DockerDeployment(
            image=IMAGE, pull="never", docker_args=[*mounts, "-e", "PYTHONPATH=/peer"]
        )
        try:
            await deployment.start()
            runtime = deployment.runtime
            await runtime.create_session(CreateBashSessionRequest())

            async def run() -> str:
                return (await runtime.run_in_session(BashAction(command=COMMAND))).output

            container = container_named(str(deployment.container_name))
            await serve("swe-rex", began_s, container, run)
        finally:
            await deployment.stop()


asyncio.run(main())
