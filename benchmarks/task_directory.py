"""Tasks from directories in Terminal-Bench layout.

::

    <task>/
      task.toml            limits, image, resources (see hermes_rl.benchmarks.task_file)
      instruction.md       the prompt, verbatim
      environment/         build context with a Dockerfile; not needed with a docker_image
      tests/test.sh        the verifier; the whole folder is uploaded to /tests
      solution/solve.sh    optional: what --oracle runs, from /solution

A directory that holds a ``task.toml`` is one task, any other the set of its sub-directories that
do. Loading checks every task and reports all faults at once, before anything is spent; a run that
leaves out the malformed ones goes on without them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from anyio import CapacityLimiter, to_thread

from hermes_rl.benchmarks.artifacts import Artifact
from hermes_rl.benchmarks.task_file import TaskFile, fill_templates, read_task_file
from hermes_rl.benchmarks.terminal_task import NEEDS, TerminalTask, content_digest
from hermes_rl.benchmarks.verification import REPORT_OPTION, CollectHook, Verifier
from hermes_rl.benchmarks.verifier_run import Harness
from hermes_rl.errors import TaskError
from hermes_rl.sandbox import Capability, HealthCheck, SandboxSpec
from hermes_rl.tasks import MalformedTask, MalformedTasks, Solution

__all__ = ["TaskDirectory", "holds_tasks", "load_task", "load_tasks"]

MAX_INSTRUCTION_BYTES = 1 << 20
"""A prompt beyond this fits no model; it is a mistake."""
LOADER_THREADS = 1
"""Reading a few hundred small files; more threads would not make it faster."""
SOLVE = "/solution/solve.sh"
"""Uploaded files are made executable by whoever runs the solution."""


class TaskDirectory:
    """The task set of a directory.

    Args:
        path: One task's directory, or a directory of such directories.
        force_build: Build images from Dockerfiles although tasks name prebuilt ones.
    """

    def __init__(self, path: str | Path, *, force_build: bool = False) -> None:
        self.path = Path(path)
        self.name = self.path.resolve().name
        self._force_build = force_build

    async def load(self) -> Sequence[TerminalTask]:
        """Load all tasks, sorted by name.

        Raises:
            MalformedTasks: Some are malformed: all faults, with file and field.
            TaskError: There is none.
        """
        return await to_thread.run_sync(
            lambda: load_tasks(self.path, force_build=self._force_build),
            limiter=CapacityLimiter(LOADER_THREADS),
        )


def load_tasks(path: Path, *, force_build: bool = False) -> list[TerminalTask]:
    """Read the tasks of a directory; see :class:`TaskDirectory`. Blocks.

    Raises:
        MalformedTasks: Some are malformed: all faults, with file and field.
        TaskError: There is none.
    """
    folders = list(_task_folders(path))
    if not folders:
        raise TaskError(f"{path} holds no task: no task.toml in it or in its sub-directories.")
    tasks, malformed = [], []
    for folder in folders:
        try:
            tasks.append(load_task(folder, force_build=force_build))
        except TaskError as error:
            malformed.append(_malformed(folder, str(error)))
    if malformed:
        raise MalformedTasks.among(tasks, malformed)
    return tasks


def _malformed(folder: Path, fault: str) -> MalformedTask:
    """Keep of a malformed task what tells whether it is wanted."""
    try:
        metadata = tomllib.loads((folder / "task.toml").read_text(encoding="utf-8"))["metadata"]
    except (OSError, ValueError, KeyError):
        metadata = {}
    facts = metadata if isinstance(metadata, dict) else {}
    return MalformedTask(id=folder.resolve().name, fault=fault, metadata=facts)


def holds_tasks(path: Path) -> bool:
    """Say whether a path is a task's directory or a directory of such. Blocks."""
    return path.is_dir() and next(_task_folders(path), None) is not None


def _task_folders(path: Path) -> Iterator[Path]:
    if (path / "task.toml").is_file():
        yield path
    elif path.is_dir():
        yield from (child for child in sorted(path.iterdir()) if (child / "task.toml").is_file())
    else:
        raise TaskError(f"{path} is no directory.")


def load_task(folder: Path, *, force_build: bool = False) -> TerminalTask:
    """Read one task directory. Blocks.

    Raises:
        TaskError: A file is missing or malformed; names it and the field.
    """
    file = read_task_file(folder / "task.toml")
    if (folder / "trajectory.json").exists():
        raise TaskError(f"{folder / 'trajectory.json'}: prior trajectories are not supported.")
    return TerminalTask(
        id=folder.resolve().name,
        prompt=_instruction(folder / "instruction.md"),
        sandbox=_sandbox(folder, file, force_build=force_build),
        setup_s=file.environment.build_timeout_sec,
        agent_s=file.agent.timeout_sec,
        metadata={**file.metadata, "digest": content_digest(folder)},
        solution=_solution(folder, file),
        agent_user=file.agent.user,
        verifier=_verifier(folder, file),
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


def _sandbox(folder: Path, file: TaskFile, *, force_build: bool) -> SandboxSpec:
    wanted = file.environment
    context = folder / "environment"
    if (context / "docker-compose.yaml").exists():
        raise TaskError(f"{context / 'docker-compose.yaml'}: compose files are not supported.")
    builds = force_build or wanted.docker_image is None
    if builds and not (context / "Dockerfile").is_file():
        instead = "leave force_build out" if force_build else "give an image"
        raise TaskError(
            f"{folder / 'task.toml'}, environment.docker_image: {instead}, or put a Dockerfile "
            f"into {context}."
        )
    users = [file.agent.user, file.verifier.user, *(hook.user for hook in file.verifier.collect)]
    where = f"{folder / 'task.toml'}, environment.env"
    return SandboxSpec(
        image=None if builds else wanted.docker_image,
        dockerfile_dir=context.resolve() if builds else None,
        build_timeout_s=wanted.build_timeout_sec,
        cpus=wanted.cpus,
        memory_mb=wanted.memory_limit_mb,
        gpus=wanted.gpus or 0,
        network=wanted.network,
        env=fill_templates(wanted.env, os.environ, where=where),
        workdir=wanted.workdir,
        healthcheck=_healthcheck(file),
        needs=NEEDS | {Capability.USERS} if any(users) else NEEDS,
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


def _verifier(folder: Path, file: TaskFile) -> Verifier:
    script = folder / "tests" / "test.sh"
    try:
        wants_report = REPORT_OPTION in script.read_bytes()
    except FileNotFoundError:
        raise TaskError(f"{script} is missing: it is the verifier.") from None
    except OSError as error:
        raise TaskError(f"{script} cannot be read: {error}.") from error
    where = f"{folder / 'task.toml'}, verifier.env"
    return Verifier(
        harness=Harness(
            tests=script.parent.resolve(),
            env=fill_templates(file.verifier.env, os.environ, where=where),
            user=file.verifier.user,
            workdir=file.environment.workdir,
        ),
        timeout_s=file.verifier.timeout_sec,
        wants_report=wants_report,
        collect=[
            CollectHook(command=hook.command, timeout_s=hook.timeout_sec, user=hook.user)
            for hook in file.verifier.collect
        ],
        artifacts=[
            Artifact(
                source=entry.source, destination=entry.destination, exclude=tuple(entry.exclude)
            )
            for entry in file.artifacts
        ],
    )


def _solution(folder: Path, file: TaskFile) -> Solution | None:
    files = folder / "solution"
    if not (files / "solve.sh").is_file():
        return None
    where = f"{folder / 'task.toml'}, solution.env"
    env = fill_templates(file.solution.env, os.environ, where=where)
    return Solution(
        command=SOLVE,
        files=files.resolve(),
        env={"DEBIAN_FRONTEND": "noninteractive", **env},
    )
