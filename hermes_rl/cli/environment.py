"""Finding an environment for a command, with a clear word where Atropos is not installed."""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_rl.errors import MissingExtra

if TYPE_CHECKING:
    from hermes_rl.atropos.base_env import HermesAgentBaseEnv

__all__ = ["add_environment_arguments", "environment_class"]


def add_environment_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    """Declare ENVIRONMENT and the options of one command of an environment."""
    parser.add_argument("environment", metavar="ENVIRONMENT", help="what to run")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML with env: and openai:")
    if command == "process":
        parser.add_argument("--resume", action="store_true", help="go on with the file")


def environment_class(spec: str) -> type[HermesAgentBaseEnv]:
    """Return the environment class named ``spec``.

    Raises:
        MissingExtra: atroposlib is not installed.
        UnknownName: No such environment.
    """
    if importlib.util.find_spec("atroposlib") is None:
        raise MissingExtra.of("serve and process (Atropos)", "atropos")
    # atroposlib imports transformers, which otherwise says that torch is missing.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from hermes_rl.cli.environments import find_environment

    return find_environment(spec)
