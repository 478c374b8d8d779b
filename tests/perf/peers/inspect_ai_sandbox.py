"""inspect_ai: ``docker compose exec`` per command, inside one sample of one task.

It refuses daemons before 24.0.6; that check is left out, so that older ones can be measured too.
"""

import os
import tempfile
import time
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, get_model
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import sandbox
from inspect_ai.util._sandbox.docker import prereqs
from meter import COMMAND, IMAGE, container_named, serve

COMPOSE = f"""services:
  default:
    image: {IMAGE}
    command: sleep infinity
    init: true
    network_mode: none
    x-local: true
"""
began_s = time.perf_counter()
served: list[bool] = []


async def any_version(*_: object) -> None:
    """Accept any daemon."""


prereqs.validate_docker_engine = any_version


@solver
def measured() -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        async def run() -> str:
            return (await sandbox().exec(["bash", "-c", COMMAND])).stdout

        box = await sandbox().connection()
        await serve("inspect_ai", began_s, container_named(str(box.container)), run)
        served.append(True)
        return state

    return solve


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    compose = Path(folder, "compose.yaml")
    compose.write_text(COMPOSE)
    model = get_model("mockllm/model", custom_outputs=[ModelOutput()])
    task = Task([Sample("x")], measured(), sandbox=("docker", str(compose)))
    (log,) = eval(task, model=model, display="none", log_dir=folder, log_level="error")
    # Without a network it fails after all samples, when it counts their tokens.
    if not served:
        raise SystemExit(f"{log.status}: {log.error.message if log.error else ''}")
