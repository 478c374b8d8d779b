"""Evaluation of an environment's items: the engine, the run directory, resume, the scores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import orjson

from hermes_rl.config_layers import public_config
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import ConfigError, TaskError
from hermes_rl.evaluation import Evaluation, OnProgress, run_header
from hermes_rl.evaluation_plan import check_size, check_solutions, model_label
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.plan import plan_run
from hermes_rl.runlog.files import RESULTS, write_whole
from hermes_rl.runlog.reader import read_run
from hermes_rl.runlog.resume import check_same_run
from hermes_rl.runlog.schema import RunHeader
from hermes_rl.runlog.scores import Summary
from hermes_rl.runlog.writer import RunLog
from hermes_rl.task_selection import TaskSelection, select
from hermes_rl.types import JSONObject

if TYPE_CHECKING:
    from hermes_rl.atropos.base_env import HermesAgentBaseEnv

__all__ = ["evaluate_items", "run_directory", "write_evaluation"]

_reading = LoopLimiter(1)
_writing = LoopLimiter(1)


def run_directory(env: HermesAgentBaseEnv) -> Path:
    """Return where evaluations of ``env`` are recorded."""
    configured = env.config.data_dir_to_save_evals
    if configured:
        return Path(configured)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return Path("runs") / f"{env.name or type(env).__name__}-{stamp}-{env.curr_step}"


async def evaluate_items(
    env: HermesAgentBaseEnv,
    items: Sequence[Any],
    *,
    engine: RolloutEngine,
    directory: Path,
    resume: bool = False,
    on_progress: OnProgress | None = None,
) -> Summary:
    """Run items as an evaluation and record every rollout as it finishes.

    Args:
        env: Turns items into tasks.
        items: What to evaluate; ``task_filter`` and ``skip_tasks`` apply.
        engine: Open.
        directory: Run directory; holds results.jsonl, transcripts and metrics.json.
        resume: Run only what is missing or errored in ``directory``.
        on_progress: Hears of every rollout's end.

    Raises:
        TaskError: An item makes no task, or two items have the same id.
        ConfigError: The directory holds a run already and ``resume`` is not set.
        HermesRLError: What stopped the run; what finished is recorded.
    """
    config = env.config
    selection = _selected(env, items)
    check_size(len(selection.tasks), config.attempts)
    check_solutions(selection, env.server_configs)
    plans = await plan_run(config, selection.tasks.values(), availability=engine.availability)
    header = run_header(
        selection,
        config,
        env.server_configs,
        models=[model_label(server) for server in env.server_configs],
        tools={name for plan in plans for name in plan.tool_names},
    )
    continues = partial(_continues_a_run, directory, header, may_resume=resume)
    exists = await anyio.to_thread.run_sync(continues, limiter=_reading)
    settings = {"tasks": selection.name, **public_config(config, env.server_configs)}
    async with RunLog(directory, header, settings, resume=exists) as log:
        evaluation = Evaluation(
            selection, engine, log, workers=config.max_eval_workers, on_progress=on_progress
        )
        return await evaluation.run()


def _selected(env: HermesAgentBaseEnv, items: Sequence[Any]) -> TaskSelection:
    config = env.config
    tasks = [env.task_of(item) for item in items]
    chosen = select(tasks, task_filter=config.task_filter, skip_tasks=config.skip_tasks)
    by_id = {task.id: task for task in chosen}
    if len(by_id) != len(chosen):
        raise TaskError("Two items have the same id; give each its own 'id'.")
    version = getattr(env, "version", None)
    return TaskSelection(
        name=env.name or type(env).__name__,
        version=None if version is None else str(version),
        tasks=by_id,
    )


def _continues_a_run(directory: Path, header: RunHeader, *, may_resume: bool) -> bool:
    """Say whether the directory holds a run, which is then this one. Blocks."""
    if not (directory / RESULTS).exists():
        return False
    if not may_resume:
        raise ConfigError(
            f"{directory} holds a run already. Resume it, or name another directory with "
            "--env.data_dir_to_save_evals."
        )
    check_same_run(read_run(directory).header, header)
    return True


async def write_evaluation(
    directory: Path, metrics: JSONObject, samples: Sequence[JSONObject] | None
) -> None:
    """Write ``metrics.json`` and, with samples, ``samples.jsonl`` in Atropos' layout."""

    def write() -> None:
        directory.mkdir(parents=True, exist_ok=True)
        write_whole(
            directory / "metrics.json",
            [orjson.dumps(metrics, option=orjson.OPT_INDENT_2, default=str)],
        )
        if samples:
            lines = (orjson.dumps(sample, default=str) + b"\n" for sample in samples)
            write_whole(directory / "samples.jsonl", lines)

    await anyio.to_thread.run_sync(write, limiter=_writing)
