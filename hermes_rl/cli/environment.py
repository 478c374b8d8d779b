"""Finding an environment for a command, with a clear word where Atropos is not installed."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_rl.cli.importing import importing
from hermes_rl.cli.task_sets import class_in_file, task_set_names
from hermes_rl.errors import MissingExtra

if TYPE_CHECKING:
    from hermes_rl.atropos.base_env import HermesAgentBaseEnv

__all__ = ["GROUP", "add_environment_arguments", "environment_class", "environment_of"]

GROUP = "hermes_rl.environments"


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
        raise MissingExtra.of("Environments (Atropos)", "atropos")
    _quieten_transformers()
    with importing():
        from hermes_rl.cli.environments import find_environment

    return find_environment(spec)


def environment_of(spec: str) -> type[HermesAgentBaseEnv] | None:
    """Return the environment that ``evaluate`` was given; None if it was given tasks.

    A name that is in both groups is a task set. A file without a class is an environment's, if
    there can be one: without atroposlib there cannot.

    Raises:
        MissingExtra: It is a registered environment, and atroposlib is not installed.
        TaskError: The file cannot be imported, or holds no environment.
    """
    if spec in task_set_names():
        return None
    if spec in {point.name for point in entry_points(group=GROUP)}:
        return environment_class(spec)
    if spec.endswith(".py") and importlib.util.find_spec("atroposlib") is not None:
        return environment_class(spec)
    _quieten_transformers()
    found = class_in_file(spec)
    # A file that holds an environment has imported the base class.
    module = sys.modules.get("hermes_rl.atropos.base_env")
    if module is None or not isinstance(found, type):
        return None
    return found if issubclass(found, module.HermesAgentBaseEnv) else None


def _quieten_transformers() -> None:
    """Keep transformers, which atroposlib imports, from saying that torch is missing."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
