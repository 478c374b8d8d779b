"""Write scored rollouts of an environment to a JSONL file, for supervised fine-tuning.

ENVIRONMENT is a registered name (see 'hermes_rl list'), path.py[:Class], or TASKS as 'evaluate'
takes them. --env.total_steps groups of --env.group_size rollouts (default 1).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from hermes_rl.cli.environment import add_environment_arguments, environment_class
from hermes_rl.cli.importing import importing
from hermes_rl.config_sources import Flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``process``."""
    add_environment_arguments(parser, "process")


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Process; what finished is on disk however it ends."""
    env_cls = environment_class(arguments.environment)
    with importing():
        from hermes_rl.cli.env_commands import run_command

    return run_command(env_cls, "process", arguments, flags)
