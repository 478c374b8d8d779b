"""Serve rollouts of an environment to a trainer, through Atropos' trajectory API.

ENVIRONMENT is a registered name (see 'hermes_rl list'), path.py[:Class], or TASKS as 'evaluate'
takes them. Start 'run-api' and the trainer first or afterwards; the environment waits for both.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hermes_rl.cli.environment import add_environment_arguments, environment_class
from hermes_rl.cli.importing import importing
from hermes_rl.config_sources import Flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``serve``."""
    add_environment_arguments(parser, "serve")


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Serve until the trainer's last step."""
    env_cls = environment_class(arguments.environment)
    with importing():
        from hermes_rl.cli.env_commands import run_command

    return run_command(env_cls, "serve", arguments, flags)
