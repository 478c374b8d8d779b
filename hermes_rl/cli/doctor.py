"""Check what the sandbox backends need on this machine; changes nothing.

Exits with 0 if all is well, else with 1. Without names, every installed backend is checked.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence

import anyio

from hermes_rl.cli.exit_codes import ExitCode
from hermes_rl.cli.plain import die_with_the_pipe
from hermes_rl.config_sources import Flag
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.sandbox import BackendSettings, Check, backend_names, open_backend


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``doctor``."""
    parser.add_argument("backend", nargs="*", help="only these backends")


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Print the checks."""
    if flags:
        raise ConfigError(f"doctor takes no settings, but got {flags[0]}.")
    die_with_the_pipe()
    return anyio.run(_examine, arguments.backend or backend_names())


async def _examine(names: Sequence[str]) -> int:
    all_well = True
    for name in names:
        print(f"{name}:")
        for check in await _checks(name):
            all_well = all_well and check.ok
            print(f"  {'ok  ' if check.ok else 'FAIL'}  {check.name}: {check.detail}".rstrip(": "))
            if not check.ok and check.fix and check.fix != check.detail:
                print(f"        fix: {check.fix}")
    return ExitCode.OK if all_well else ExitCode.SOME_ERRORED


async def _checks(name: str) -> Sequence[Check]:
    """A backend that cannot even be opened is a failed check, unless its name is unknown."""
    if name not in backend_names():
        open_backend(name, _settings())
    try:
        return await open_backend(name, _settings()).doctor()
    except HermesRLError as error:
        return [Check("backend", ok=False, detail=str(error))]


def _settings() -> BackendSettings:
    return BackendSettings(run_id=f"cli-{uuid.uuid4().hex[:12]}")
