"""Tasks from directories in Terminal-Bench layout.

::

    <task>/
      task.toml            limits, image, resources (see hermes_rl.benchmarks.task_file)
      instruction.md       the prompt, verbatim
      environment/         build context with a Dockerfile; not needed with a docker_image
      tests/test.sh        the verifier; the whole folder is uploaded to /tests
      solution/solve.sh    optional: what --oracle runs, from /solution

A directory that holds a ``task.toml`` is one task, any other the set of its sub-directories that
do. Loading checks every task and reports all faults at once, before anything is spent.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyio import CapacityLimiter, to_thread

from hermes_rl.benchmarks.task_file import TaskFile, fill_templates, read_task_file
from hermes_rl.benchmarks.verification import Verifier
from hermes_rl.errors import TaskError
from hermes_rl.sandbox import Capability, HealthCheck, SandboxSpec
from hermes_rl.tasks import Deadlines, Solution
from hermes_rl.types import AgentResult, Reward

if TYPE_CHECKING:
    from hermes_rl.context import ToolContext

__all__ = ["DirectoryTask", "TaskDirectory", "content_digest", "load_task"]

REWARD_MARGIN_S = 120.0
"""Seconds around the verifier's own limit for uploads and for reading the result, so that a slow
verifier meets its own limit and is reported as such."""
MAX_INSTRUCTION_BYTES = 1 << 20
"""A prompt beyond this fits no model; it is a mistake."""
LOADER_THREADS = 1
"""Reading a few hundred small files; more threads would not make it faster."""


@dataclass(slots=True, frozen=True, kw_only=True)
class DirectoryTask:
    """One task directory, read and checked."""

    id: str
    prompt: str
    sandbox: SandboxSpec
    deadlines: Deadlines
    metadata: Mapping[str, Any]
    solution: Solution | None
    agent_user: str | None
    verifier: Verifier

    async def reward(self, result: AgentResult, ctx: ToolContext) -> Reward:
        """Run the verifier in the agent's sandbox."""
        return await self.verifier.run(ctx.sandbox)


class TaskDirectory:
    """The task set of a directory.

    Args:
        path: One task's directory, or a directory of such directories.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name

    async def load(self) -> Sequence[DirectoryTask]:
        """Load all tasks, sorted by name.

        Raises:
            TaskError: There is none, or some are malformed: all faults, with file and field.
        """
        limiter = CapacityLimiter(LOADER_THREADS)
        return await to_thread.run_sync(_load_all, self.path, limiter=limiter)


def _load_all(path: Path) -> list[DirectoryTask]:
    folders = list(_task_folders(path))
    if not folders:
        raise TaskError(f"{path} holds no task: no task.toml in it or in its sub-directories.")
    tasks, faults = [], []
    for folder in folders:
        try:
            tasks.append(load_task(folder))
        except TaskError as error:
            faults.append(str(error))
    if faults:
        raise TaskError("\n".join(faults))
    return tasks


def _task_folders(path: Path) -> Iterator[Path]:
    if (path / "task.toml").is_file():
        yield path
    elif path.is_dir():
        yield from (child for child in sorted(path.iterdir()) if (child / "task.toml").is_file())
    else:
        raise TaskError(f"{path} is no directory.")


def load_task(folder: Path) -> DirectoryTask:
    """Read one task directory. Blocks.

    Raises:
        TaskError: A file is missing or malformed; names it and the field.
    """
    file = read_task_file(folder / "task.toml")
    tests = folder / "tests"
    if not (tests / "test.sh").is_file():
        raise TaskError(f"{tests / 'test.sh'} is missing: it is the verifier.")
    where = str(folder / "task.toml")
    verifier_env = fill_templates(file.verifier.env, os.environ, where=f"{where}, verifier.env")
    return DirectoryTask(
        id=folder.resolve().name,
        prompt=_instruction(folder / "instruction.md"),
        sandbox=_sandbox(folder, file),
        deadlines=Deadlines(
            setup_s=file.environment.build_timeout_sec,
            agent_s=file.agent.timeout_sec,
            reward_s=file.verifier.timeout_sec + REWARD_MARGIN_S,
        ),
        metadata={**file.metadata, "digest": content_digest(folder)},
        solution=_solution(folder, file),
        agent_user=file.agent.user,
        verifier=Verifier(
            tests=tests,
            timeout_s=file.verifier.timeout_sec,
            env=verifier_env,
            user=file.verifier.user,
            workdir=file.environment.workdir,
        ),
    )


def _instruction(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_INSTRUCTION_BYTES:
            raise TaskError(f"{path} is larger than {MAX_INSTRUCTION_BYTES} bytes.")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path} cannot be read: {error}.") from error
    if not text.strip():
        raise TaskError(f"{path} is empty: it is the prompt.")
    return text


def _sandbox(folder: Path, file: TaskFile) -> SandboxSpec:
    wanted = file.environment
    context = folder / "environment"
    image = wanted.docker_image
    if (context / "docker-compose.yaml").exists():
        raise TaskError(f"{context / 'docker-compose.yaml'}: compose files are not supported.")
    if image is None and not (context / "Dockerfile").is_file():
        raise TaskError(
            f"{folder / 'task.toml'}, environment.docker_image: give an image, or put a "
            f"Dockerfile into {context}."
        )
    where = f"{folder / 'task.toml'}, environment.env"
    return SandboxSpec(
        image=image,
        dockerfile_dir=None if image else context.resolve(),
        build_timeout_s=wanted.build_timeout_sec,
        cpus=wanted.cpus,
        memory_mb=wanted.memory_limit_mb,
        gpus=wanted.gpus or 0,
        network=wanted.network,
        env=fill_templates(wanted.env, os.environ, where=where),
        workdir=wanted.workdir,
        healthcheck=_healthcheck(file),
        # Tests write to /tests and /logs: never on a host that isolates nothing.
        needs=frozenset({Capability.ISOLATION}),
    )


def _healthcheck(file: TaskFile) -> HealthCheck | None:
    check = file.environment.healthcheck
    if check is None:
        return None
    return HealthCheck(
        command=check.command,
        interval_s=check.interval_sec,
        timeout_s=check.timeout_sec,
        start_period_s=check.start_period_sec,
        retries=check.retries,
    )


def _solution(folder: Path, file: TaskFile) -> Solution | None:
    files = folder / "solution"
    if not (files / "solve.sh").is_file():
        return None
    where = f"{folder / 'task.toml'}, solution.env"
    env = fill_templates(file.solution.env, os.environ, where=where)
    return Solution(
        command="chmod +x /solution/solve.sh && /solution/solve.sh",
        files=files.resolve(),
        env={"DEBIAN_FRONTEND": "noninteractive", **env},
    )


def content_digest(folder: Path) -> str:
    """Return the SHA-256 of a directory: names, executable bits, links and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            kind, content = "link", os.readlink(path).encode()
        elif path.is_file():
            kind = "exec" if os.access(path, os.X_OK) else "file"
            content = path.read_bytes()
        else:
            continue
        digest.update(f"{kind}\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
