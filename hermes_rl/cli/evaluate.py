"""Run a task set, or an environment's own evaluation, on a model and score it.

TASKS is a registered name (see 'hermes_rl list'), path.py:Class, a directory of tasks in
Terminal-Bench layout, or an environment: path.py[:Class]. Without it: the bundled terminal-test.
Without a model: the embedded one (at temperature 0) if the extra [local] is installed, else each
task's own solution.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path

import anyio

from hermes_rl.atropos.tracking import Tracker, log_evaluation, open_tracker
from hermes_rl.author_code import guard_child_tasks
from hermes_rl.cli.display import Display, make_display, warnings_on
from hermes_rl.cli.environment import environment_of
from hermes_rl.cli.exit_codes import ExitCode, exit_code_of
from hermes_rl.cli.field_help import field_help
from hermes_rl.cli.importing import importing
from hermes_rl.cli.interrupt import Interruption
from hermes_rl.cli.plain import printable
from hermes_rl.cli.report import summary_text
from hermes_rl.cli.settings import EvaluateSettings, add_model_switches, evaluate_settings
from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.config_sources import Flag, load_dotenv
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.evaluation import Evaluation
from hermes_rl.evaluation_plan import EvaluationPlan, new_run_directory, plan_evaluation
from hermes_rl.garbage import rare_full_collections
from hermes_rl.runlog.scores import Summary
from hermes_rl.runlog.writer import RunLog
from hermes_rl.task_selection import load_selection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``evaluate``."""
    parser.add_argument("tasks", nargs="?", metavar="TASKS", help="what to run")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML with env: and openai:")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN_DIR",
        help="run what is missing or errored in RUN_DIR, with its settings",
    )
    add_model_switches(parser)
    parser.add_argument(
        "--display",
        choices=["auto", "rich", "plain", "none"],
        default="auto",
        help="progress on stderr (default: rich on a terminal, else plain)",
    )
    sections = (("env", EnvConfig), ("openai", ServerConfig))
    parser.epilog = f"{field_help(sections)}\n{parser.epilog or ''}"


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Evaluate; see :data:`hermes_rl.cli.exit_codes.EXIT_CODE_HELP`."""
    load_dotenv(Path.cwd())
    env_cls = None if arguments.tasks is None else environment_of(arguments.tasks)
    if env_cls is not None:
        with importing():
            from hermes_rl.cli.env_commands import run_command

        return run_command(env_cls, "evaluate", arguments, flags)
    settings = evaluate_settings(
        tasks=arguments.tasks,
        config_path=arguments.config,
        resume=arguments.resume,
        server_type=arguments.server_type,
        flags=flags,
    )
    display = make_display(arguments.display)
    session = _Session(settings, arguments.resume, display)
    with warnings_on(display):
        try:
            code = anyio.run(session.run)
        finally:
            display.close()
            if session.report is not None:
                print(printable(session.report), flush=True)
    if session.error is not None:
        print(f"hermes_rl: {printable(str(session.error))}", file=sys.stderr)
    return code


class _Session:
    """One call of ``evaluate``.

    Attributes:
        report: Text for stdout, None if there is nothing to report.
        error: What stopped the run, to be shown after the report; its exit code is returned.
    """

    def __init__(self, settings: EvaluateSettings, resume: Path | None, display: Display) -> None:
        self.report: str | None = None
        self.error: HermesRLError | None = None
        self._settings = settings
        self._resume = resume
        self._display = display

    async def run(self) -> int:
        """Run under our signal handlers and return the exit code."""
        code: int = ExitCode.OK
        guard_child_tasks()
        with anyio.CancelScope() as scope, Interruption(scope.cancel) as interruption:
            code = await self._prepare_and_run()
        return interruption.exit_code or code

    async def _prepare_and_run(self) -> int:
        for line in self._settings.notices:
            self._display.say(line)
        plan = await self._plan()
        if not plan.selection.tasks:
            self._display.say("Nothing to evaluate: task_filter and skip_tasks leave no task.")
            return ExitCode.NOTHING_DONE
        async with anyio.create_task_group() as group:
            group.start_soon(self._display.run)
            code = await self._evaluate(plan)
            group.cancel_scope.cancel()
        return code

    async def _plan(self) -> EvaluationPlan:
        source, env = self._settings.source, self._settings.env
        selection = await load_selection(source.make(env), env)
        return await plan_evaluation(
            selection,
            env,
            self._settings.servers,
            directory=self._resume or new_run_directory(env, selection.name, datetime.now()),
            resume=self._resume is not None,
            spec=source.spec,
        )

    async def _evaluate(self, plan: EvaluationPlan) -> int:
        env, servers = self._settings.env, self._settings.servers
        evaluation: Evaluation | None = None
        try:
            engine = RolloutEngine(env, servers, artifacts=plan.artifacts)
            async with self._tracker(plan) as tracker, engine, plan.open_log() as log:
                self._announce(log, plan)
                evaluation = Evaluation(
                    plan.selection,
                    engine,
                    log,
                    workers=plan.workers,
                    on_progress=self._display.update,
                )
                try:
                    async with rare_full_collections():
                        summary = await evaluation.run()
                finally:
                    self._keep_report(log, evaluation.summary)
                await log_evaluation(tracker, summary, list(log.records.values()))
        except HermesRLError as error:
            self.error = error
            was_running = evaluation is not None and not isinstance(error, ConfigError)
            return ExitCode.STOPPED if was_running else exit_code_of(error)
        return _exit_code(evaluation.summary)

    def _tracker(self, plan: EvaluationPlan) -> AbstractAsyncContextManager[Tracker]:
        """Open Weights & Biases where that was asked for; the default of Atropos is no request."""
        env = self._settings.env
        return open_tracker(
            enabled=env.use_wandb and "use_wandb" in env.model_fields_set,
            name=env.wandb_name or plan.selection.name,
            config=plan.config,
        )

    def _announce(self, log: RunLog, plan: EvaluationPlan) -> None:
        env = self._settings.env
        self._display.say(
            f"{plan.selection.name}: {len(log.owed)} rollouts of {len(log.header.task_ids)} tasks "
            f"on {env.terminal_backend}, model {', '.join(log.header.models)}; {log.directory}"
        )

    def _keep_report(self, log: RunLog, summary: Summary | None) -> None:
        if summary is None:
            return
        text = summary_text(log.header, summary) if summary.recorded else "Nothing was run."
        again = "" if summary.complete else f"\nContinue with: evaluate --resume {log.directory}"
        self.report = f"{text}\n{log.directory}{again}"


def _exit_code(summary: Summary | None) -> int:
    if summary is None or not summary.headline.rollouts:
        return ExitCode.NOTHING_DONE
    return ExitCode.SOME_ERRORED if summary.errored else ExitCode.OK
