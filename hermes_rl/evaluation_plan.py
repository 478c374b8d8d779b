"""An evaluation as it is planned: everything that can be checked before anything is started."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from anyio import CapacityLimiter, to_thread

import hermes_rl
from hermes_rl.bounds import MOST_ROLLOUTS
from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.config_layers import public_config, score_config
from hermes_rl.errors import ConfigError, RunLogError, TaskError
from hermes_rl.legacy.catalog import catalog_of
from hermes_rl.plan import plan_run
from hermes_rl.runlog.files import RESULTS, artifacts_name
from hermes_rl.runlog.reader import read_run
from hermes_rl.runlog.resume import check_same_run
from hermes_rl.runlog.schema import RunHeader
from hermes_rl.runlog.writer import RunLog
from hermes_rl.task_selection import TaskSelection
from hermes_rl.types import JSONObject

__all__ = [
    "EvaluationPlan",
    "check_size",
    "check_solutions",
    "model_label",
    "new_run_directory",
    "plan_evaluation",
    "run_header",
]

RUNS = Path("runs")
"""Where run directories go unless ``data_dir_to_save_evals`` says."""
READER_THREADS = 1
"""One file is read once."""


@dataclass(slots=True, frozen=True, kw_only=True)
class EvaluationPlan:
    """A checked evaluation.

    Attributes:
        selection: Its tasks.
        header: What is recorded about it.
        config: Its configuration as recorded, without secrets.
        directory: Where it is recorded.
        is_resumed: Whether the run that is there is continued.
        workers: Rollouts at once.
    """

    selection: TaskSelection
    header: RunHeader
    config: JSONObject
    directory: Path
    is_resumed: bool
    workers: int

    def artifacts(self, task_id: str, attempt: int) -> Path:
        """Return where a rollout may leave files of its own; for the engine."""
        return self.directory / artifacts_name(task_id, attempt)

    def open_log(self) -> RunLog:
        """Return the run log; enter it with ``async with``."""
        return RunLog(self.directory, self.header, self.config, resume=self.is_resumed)


async def plan_evaluation(
    selection: TaskSelection,
    env: EnvConfig,
    servers: Sequence[ServerConfig],
    *,
    directory: Path,
    resume: bool = False,
    model_names: Sequence[str] | None = None,
    spec: str | None = None,
) -> EvaluationPlan:
    """Check an evaluation as far as that is possible without starting anything.

    Args:
        selection: The tasks.
        env: Configuration.
        servers: Configuration of the model endpoints; empty with a model object.
        directory: Run directory.
        resume: Continue the run that is there.
        model_names: Names for reports; None = those of ``servers``.
        spec: How the tasks are found again on a later ``--resume``; None = by their set's name.

    Raises:
        TaskError: A task is malformed, or the oracle has no solution to play.
        ConfigError: The configuration does not fit the tasks.
        RunLogError: The directory holds a run already, or none to resume.
        ResumeMismatch: Something that affects scores differs from the recorded run.
    """
    check_size(len(selection.tasks), env.attempts)
    check_solutions(selection, servers)
    catalog = await catalog_of(env)
    plans = await plan_run(env, selection.tasks.values(), availability=catalog.availability)
    header = run_header(
        selection,
        env,
        servers,
        models=model_names or [model_label(server) for server in servers],
        tools={name for plan in plans for name in plan.tool_names},
    )
    check = partial(_check_directory, directory, header, is_resumed=resume)
    await to_thread.run_sync(check, limiter=CapacityLimiter(READER_THREADS))
    return EvaluationPlan(
        selection=selection,
        header=header,
        config={"tasks": spec or selection.name, **public_config(env, servers)},
        directory=directory,
        is_resumed=resume,
        workers=env.max_eval_workers,
    )


def check_size(tasks: int, attempts: int) -> None:
    """Refuse a run of more rollouts than one run directory can hold.

    Raises:
        ConfigError: Says how many attempts are possible.
    """
    if tasks * attempts > MOST_ROLLOUTS:
        most = MOST_ROLLOUTS // tasks
        advice = f"for so many tasks at most {most}" if most else "choose some by env.task_filter"
        raise ConfigError(
            f"env.attempts: {tasks} tasks x {attempts} attempts are more than {MOST_ROLLOUTS} "
            f"rollouts, the most of one run; {advice}."
        )


def check_solutions(selection: TaskSelection, servers: Sequence[ServerConfig]) -> None:
    """Refuse the oracle where no task has a solution.

    Raises:
        TaskError: Says where solutions are found.
    """
    plays = bool(servers) and all(server.server_type == "oracle" for server in servers)
    tasks = selection.tasks.values()
    if plays and tasks and not any(getattr(task, "solution", None) for task in tasks):
        raise TaskError(
            f"The oracle has nothing to play: none of {len(tasks)} tasks of {selection.name} has a "
            "solution. Data sets on the hub hold none; directories of tasks do, as "
            "solution/solve.sh (for a benchmark: --env.dataset_name DIRECTORY)."
        )


def _check_directory(directory: Path, header: RunHeader, *, is_resumed: bool) -> None:
    """Find out what opening the run log would find. Blocks."""
    if is_resumed:
        check_same_run(read_run(directory).header, header)
    elif (directory / RESULTS).exists():
        raise RunLogError(
            f"{directory} already holds a run. Continue it with --resume {directory}, or choose "
            "another directory with --env.data_dir_to_save_evals."
        )


def run_header(
    selection: TaskSelection,
    env: EnvConfig,
    servers: Sequence[ServerConfig],
    *,
    models: Sequence[str],
    tools: Collection[str],
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> RunHeader:
    """Return the header of a run as it is planned now.

    Args:
        selection: Its tasks.
        env: Configuration.
        servers: Configuration of the model endpoints.
        models: Model names for reports.
        tools: Names of the tools that the model is given.
        now: Clock of ``created_at``.
    """
    created_at = now()
    return RunHeader(
        run_id=f"{created_at:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        created_at=created_at.isoformat(timespec="seconds"),
        engine_version=hermes_rl.__version__,
        task_set=selection.name,
        task_set_version=selection.version,
        models=list(models),
        attempts=env.attempts,
        task_ids=list(selection.tasks),
        task_digests=selection.digests,
        tools=sorted(tools),
        score_config=score_config(env, servers),
    )


def model_label(server: ServerConfig) -> str:
    """Return a model's name for reports."""
    if server.server_type in ("oracle", "nop"):
        return server.server_type
    if server.model_name != ServerConfig.model_fields["model_name"].default:
        return server.model_name
    if server.server_type == "local":
        return Path(server.path).name if server.path else "gemma3-270m"
    return server.server_type


def new_run_directory(env: EnvConfig, name: str, now: datetime) -> Path:
    """Return the configured run directory, or one below ``runs`` that does not exist yet."""
    if env.data_dir_to_save_evals:
        return Path(env.data_dir_to_save_evals)
    plain = re.sub(r"[^\w.-]+", "-", name).strip("-.") or "tasks"
    stem = f"{plain}-{now:%Y%m%d-%H%M%S}"
    candidates = [RUNS / stem, *(RUNS / f"{stem}-{number}" for number in range(2, 100))]
    return next(path for path in candidates if not path.exists())
