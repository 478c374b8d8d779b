"""The commands of ``python -m hermes_rl``.

A command is a module of this package with ``add_arguments(parser)`` and
``run(arguments, flags) -> exit code``; it is imported only when it is called. To add one, write
``cli/<name>.py`` and name it in :data:`COMMANDS`.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from typing import Protocol, cast

import hermes_rl
from hermes_rl.cli.exit_codes import EXIT_CODE_HELP, ExitCode
from hermes_rl.cli.importing import importing
from hermes_rl.config_sources import Flag, split_flags

__all__ = ["COMMANDS", "Command", "dispatch"]

COMMANDS = {
    "doctor": "check what backends and task sets need on this machine",
    "evaluate": "run a task set and score it",
    "export": "write rollouts as fine-tuning data",
    "list": "name task sets, backends, parsers and toolsets",
    "parse": "show what a tool-call parser makes of raw model text",
    "process": "write scored rollouts of an environment to a JSONL file",
    "sandboxes": "list the sandboxes of all runs, or remove leftovers",
    "serve": "serve rollouts of an environment to a trainer",
    "view": "show a run, or one rollout of it, as plain text",
}
"""Name, which is also the module's, and one line of help."""


class Command(Protocol):
    """What a command's module offers. Its docstring is the command's description."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments."""
        ...

    def run(self, arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
        """Do it.

        Args:
            arguments: As parsed.
            flags: The dotted flags (``--env.x``) of the command line.

        Returns:
            The exit code.

        Raises:
            HermesRLError: An expected failure; shown as one message, without a traceback.
        """
        ...


def dispatch(words: list[str]) -> int:
    """Run the command that a command line names and return its exit code.

    Raises:
        HermesRLError: An expected failure.
        SystemExit: The words are wrong, or ask for help.
    """
    top = _top_parser()
    arguments = top.parse_args(words[:1])
    name: str | None = arguments.command
    if name is None:
        top.print_help()
        return ExitCode.USAGE
    with importing():
        command = cast(Command, importlib.import_module(f"hermes_rl.cli.{name}"))
    parser = argparse.ArgumentParser(
        prog=f"hermes_rl {name}",
        description=command.__doc__,
        epilog=EXIT_CODE_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    rest, flags = split_flags(words[1:])
    return command.run(parser.parse_args(rest), flags)


def _top_parser() -> argparse.ArgumentParser:
    lines = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="hermes_rl",
        description=hermes_rl.__doc__,
        epilog=f"commands:\n{lines}\n\n'hermes_rl COMMAND --help' says more.\n\n{EXIT_CODE_HELP}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"hermes_rl {hermes_rl.__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("command", nargs="?", choices=list(COMMANDS), metavar="COMMAND")
    return parser
