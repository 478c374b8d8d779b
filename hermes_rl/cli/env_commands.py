"""The three commands of an environment: ``serve``, ``process``, ``evaluate``.

Used by ``python -m hermes_rl <command> ENVIRONMENT`` and by ``MyEnv.cli()`` in a script.
Precedence of settings: command line, YAML, what the command must have (``process``: one rollout
per group, equal scores kept, messages included), ``config_init()``, the command's other defaults
(``evaluate``: the model's whole context), class defaults.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio

from hermes_rl.atropos.base_env import HermesAgentBaseEnv
from hermes_rl.atropos.evaluating import run_directory
from hermes_rl.atropos.process import Processor
from hermes_rl.atropos.scheduler import Scheduler
from hermes_rl.atropos.servers import server_configs_of
from hermes_rl.atropos.tracking import open_tracker
from hermes_rl.atropos.trajectory_api import TrajectoryAPI, open_trajectory_api
from hermes_rl.author_code import guard_child_tasks
from hermes_rl.cli.exit_codes import EXIT_CODE_HELP, ExitCode, exit_code_after, exit_code_of
from hermes_rl.cli.field_help import field_help
from hermes_rl.cli.interrupt import Interruption
from hermes_rl.cli.settings import add_model_switches, switch_layer
from hermes_rl.cli.task_sets import failure_text
from hermes_rl.config import ServerConfig
from hermes_rl.config_layers import layer_of_models, public_config, resolve, with_reasoning
from hermes_rl.config_sources import Flag, Layer, flag_layer, load_dotenv, read_yaml, split_flags
from hermes_rl.errors import ConfigError, HermesRLError, TaskError
from hermes_rl.garbage import rare_full_collections

__all__ = ["COMMANDS", "add_arguments", "cli", "make_environment", "run_command"]

_log = logging.getLogger("hermes_rl.atropos")

_MUST: dict[str, dict[str, Any]] = {
    "process": {"group_size": 1, "ensure_scores_are_not_same": False, "include_messages": True}
}
_DEFAULTS: dict[str, dict[str, Any]] = {"evaluate": {"max_token_length": None}}


def make_environment(
    env_cls: type[HermesAgentBaseEnv],
    command: str,
    *,
    config_path: Path | None = None,
    flags: Sequence[Flag] = (),
    server_type: str | None = None,
) -> HermesAgentBaseEnv:
    """Return an environment with its settings resolved.

    Args:
        env_cls: Its class.
        command: The command it is for.
        config_path: ``--config``.
        flags: Dotted flags.
        server_type: ``oracle`` or ``nop`` where that was asked for by its own switch.

    Raises:
        ConfigError: A setting is wrong; names the field and its source.
        TaskError: ``config_init()`` failed.
    """
    model = env_cls.env_config_cls
    layers = [
        Layer(env=_DEFAULTS.get(command, {}), source=f"{command}'s defaults"),
        _init_layer(env_cls),
        Layer(env=_MUST.get(command, {}), source=f"what {command} must have"),
    ]
    if config_path is not None:
        layers.append(read_yaml(config_path))
    layers += [flag_layer(flags, model), switch_layer(server_type)]
    config, servers = resolve(model, layers)
    config, servers = with_reasoning(config, servers)
    return env_cls(config, servers)


def _init_layer(env_cls: type[HermesAgentBaseEnv]) -> Layer:
    source = f"config_init() of {env_cls.__name__}"
    try:
        config, servers = env_cls.config_init()
        return layer_of_models(config, server_configs_of(servers) or None, source)
    except HermesRLError:
        raise
    except Exception as error:  # the author's code, which may raise anything
        raise TaskError(f"{source} failed: {failure_text(error)}") from error


async def _serve(env: HermesAgentBaseEnv, arguments: argparse.Namespace) -> int:
    config = env.config
    name = config.wandb_name or env.name or type(env).__name__
    with anyio.CancelScope() as starting:
        # Before there are groups to send, stopping is leaving.
        stops: list[Callable[[], None]] = [starting.cancel]
        with Interruption(lambda: stops[-1]()) as interruption:
            async with (
                open_trajectory_api(config.rollout_server_url, max_wait_s=config.api_wait_s) as api,
                env.opened(),
            ):
                await env.check_tokenizer()
                await env.setup()
                scheduler = Scheduler(env, api)
                stops.append(scheduler.stop)
                await scheduler.connect()
                async with (
                    open_tracker(
                        enabled=config.use_wandb,
                        name=name,
                        config=public_config(config, env.server_configs),
                        project=env.wandb_project,
                        group=env.wandb_group,
                    ) as env.tracker,
                    rare_full_collections(),
                ):
                    await scheduler.run()
                    await env.log_rest()
                _report_serve(name, scheduler, api)
    return interruption.exit_code or ExitCode.OK


def _report_serve(name: str, scheduler: Scheduler, api: TrajectoryAPI) -> None:
    counts = ", ".join(f"{name} {n}" for name, n in asdict(scheduler.counters).items() if n)
    print(
        f"{name}: {counts or 'nothing sent'}; possible duplicates "
        f"{api.counters.possible_duplicates}, resent {api.counters.resent_after_restart}"
    )


async def _process(env: HermesAgentBaseEnv, arguments: argparse.Namespace) -> int:
    config = env.config
    name = env.name or "groups"
    path = Path(config.data_path_to_save_groups or f"data/{name}.jsonl")
    processor = Processor(env, path, resume=arguments.resume)
    async with (
        env.opened(),
        open_tracker(
            enabled=config.use_wandb, name=name, config=public_config(config, env.server_configs)
        ) as env.tracker,
    ):
        await env.check_tokenizer()
        await env.setup()
        async with rare_full_collections():
            await processor.run()
    done = processor.counters
    print(
        f"{path}: {done.written} groups written, {done.skipped} were there, "
        f"{done.filtered} filtered, {done.failed} failed; {path.with_suffix('.html')}"
    )
    if not done.written and not done.skipped:
        return ExitCode.NOTHING_DONE
    return ExitCode.SOME_ERRORED if done.failed else ExitCode.OK


async def _evaluate(env: HermesAgentBaseEnv, arguments: argparse.Namespace) -> int:
    config = env.config
    if arguments.resume:
        config.data_dir_to_save_evals = str(arguments.resume)
        env.resume = True
    elif config.data_dir_to_save_evals is None:
        config.data_dir_to_save_evals = str(run_directory(env))
    async with (
        env.opened(),
        open_tracker(
            enabled=config.use_wandb,
            name=env.name or type(env).__name__,
            config=public_config(config, env.server_configs),
        ) as env.tracker,
    ):
        await env.setup()
        async with rare_full_collections():
            await env.evaluate()
    return _report_evaluation(env)


def _report_evaluation(env: HermesAgentBaseEnv) -> int:
    from hermes_rl.cli.report import summary_text
    from hermes_rl.runlog.reader import read_run

    directory = Path(str(env.config.data_dir_to_save_evals))
    for metrics in env.logged_metrics:
        for name, value in metrics.items():
            print(f"{name:<40} {value}")
    for summary in env.evaluations:
        print(summary_text(read_run(directory).header, summary))
    if not env.evaluations and not env.logged_metrics:
        print(
            f"{type(env).__name__}.evaluate() recorded nothing: call await "
            "self.evaluate_items(items), or await self.evaluate_log(metrics).",
            file=sys.stderr,
        )
        return ExitCode.NOTHING_DONE
    print(directory)
    return ExitCode.SOME_ERRORED if any(s.errored for s in env.evaluations) else ExitCode.OK


Command = Callable[[HermesAgentBaseEnv, argparse.Namespace], Awaitable[int]]
COMMANDS: dict[str, Command] = {"serve": _serve, "process": _process, "evaluate": _evaluate}


def add_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare the arguments that the command has for every environment."""
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML with env: and openai:")
    if command == "process":
        parser.add_argument("--resume", action="store_true", help="go on with the file")
    if command == "evaluate":
        parser.add_argument("--resume", type=Path, metavar="RUN_DIR", help="go on with a run")
        add_model_switches(parser)


def run_command(
    env_cls: type[HermesAgentBaseEnv],
    command: str,
    arguments: argparse.Namespace,
    flags: Sequence[Flag],
) -> int:
    """Run one command of an environment and return the exit code.

    Raises:
        HermesRLError: An expected failure, to be shown as one message.
    """
    load_dotenv(Path.cwd())
    env = make_environment(
        env_cls,
        command,
        config_path=arguments.config,
        flags=flags,
        server_type=getattr(arguments, "server_type", None),
    )

    async def main() -> int:
        guard_child_tasks()
        if command == "serve":
            return await COMMANDS[command](env, arguments)
        code: int = ExitCode.OK
        with anyio.CancelScope() as scope, Interruption(scope.cancel) as interruption:
            code = await COMMANDS[command](env, arguments)
        return interruption.exit_code or code

    try:
        return anyio.run(main)
    except HermesRLError as error:
        print(f"hermes_rl: {error}", file=sys.stderr)
        was_running = not isinstance(error, ConfigError | TaskError)
        return ExitCode.STOPPED if was_running else exit_code_of(error)


def cli(env_cls: type[HermesAgentBaseEnv], argv: Sequence[str] | None = None) -> None:
    """Run ``serve``, ``process`` or ``evaluate`` of one class from a script; exits."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        description=env_cls.__doc__,
        epilog=f"{field_help((('env', env_cls.env_config_cls), ('openai', ServerConfig)))}\n"
        f"{EXIT_CODE_HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        add_arguments(commands.add_parser(name, allow_abbrev=False), name)

    def work() -> int:
        rest, flags = split_flags(words)
        arguments = parser.parse_args(rest)
        return run_command(env_cls, arguments.command, arguments, flags)

    sys.exit(exit_code_after(work))
