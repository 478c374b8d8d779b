"""Name what is installed: task sets, backends, parsers, toolsets."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

from hermes_rl.cli.plain import die_with_the_pipe
from hermes_rl.cli.task_sets import task_set_names
from hermes_rl.config_sources import Flag
from hermes_rl.errors import ConfigError
from hermes_rl.legacy.catalog import ask_blocking
from hermes_rl.legacy.settings import LegacySettings
from hermes_rl.sandbox import backend_names
from hermes_rl.tools import NATIVE_TOOLS, TOOLSETS
from hermes_rl.tools.toolsets import toolset_tools


def _parser_names() -> list[str]:
    return sorted({point.name for point in entry_points(group="hermes_rl.parsers")})


def _usable_toolsets() -> list[str]:
    """Those of hermes-agent too, if it is installed beside us."""
    settings = LegacySettings()
    more = ask_blocking(settings).schemas.keys() if settings.is_present else frozenset()
    usable = NATIVE_TOOLS.keys() | more
    return sorted(name for name in TOOLSETS if toolset_tools(name) & usable)


KINDS: dict[str, Callable[[], list[str]]] = {
    "tasks": task_set_names,
    "backends": backend_names,
    "parsers": _parser_names,
    "toolsets": _usable_toolsets,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``list``."""
    parser.add_argument("kind", nargs="?", choices=list(KINDS), help="only these")


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Print the names."""
    if flags:
        raise ConfigError(f"list takes no settings, but got {flags[0]}.")
    die_with_the_pipe()
    if arguments.kind:
        print("\n".join(KINDS[arguments.kind]()))
        return 0
    for kind, names in KINDS.items():
        print(f"{kind}:")
        print("\n".join(f"  {name}" for name in names()) or "  none")
    return 0
