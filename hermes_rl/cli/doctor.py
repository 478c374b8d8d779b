"""Check what the sandbox backends need on this machine; changes nothing.

Without names, every backend is looked at; one that was never set up (its extra, program or
account is missing) is named and is no fault. With names, it is one. Exits with 0 if all is well,
else with 1. ``--env.backend_options`` are those of the one backend that is named.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Sequence
from pathlib import Path

import anyio

from hermes_rl.cli.backend_flags import backend_options
from hermes_rl.cli.exit_codes import ExitCode
from hermes_rl.cli.plain import printable
from hermes_rl.config_sources import Flag, load_dotenv
from hermes_rl.errors import ConfigError, HermesRLError, MissingExtra, NotSetUp
from hermes_rl.foreign_backend import blamed_on
from hermes_rl.sandbox import Backend, BackendSettings, Check, backend_names, open_backend
from hermes_rl.types import JSONObject


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``doctor``."""
    parser.add_argument("backend", nargs="*", help="only these backends")


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Print the checks."""
    options = backend_options(flags, command="doctor")
    if options and len(arguments.backend) != 1:
        raise ConfigError("--env.backend_options are one backend's: name it, as in 'doctor ssh'.")
    load_dotenv(Path.cwd())
    return anyio.run(_examine, arguments.backend, options)


async def _examine(wanted: Sequence[str], options: JSONObject) -> int:
    all_well = True
    for name in wanted or backend_names():
        checks = await _checks(name, options)
        print(f"{name}:")
        for check in checks:
            is_unwanted = check.optional and not wanted
            all_well = all_well and (check.ok or is_unwanted)
            print(printable(_line(check, is_unwanted=is_unwanted)))
    return ExitCode.OK if all_well else ExitCode.SOME_ERRORED


def _line(check: Check, *, is_unwanted: bool) -> str:
    state = "ok  " if check.ok else "--  " if is_unwanted else "FAIL"
    line = f"  {state}  {check.name}: {check.detail}".rstrip(": ")
    if check.ok or not check.fix or check.fix == check.detail:
        return line
    return f"{line}\n        {'to have it' if is_unwanted else 'fix'}: {check.fix}"


async def _checks(name: str, options: JSONObject) -> Sequence[Check]:
    """A backend that cannot even be opened is a failed check, unless its name is unknown."""
    if name not in backend_names():
        open_backend(name, _settings(options))
    try:
        return await _checks_of(open_backend(name, _settings(options)))
    except (MissingExtra, NotSetUp) as error:  # of no concern to who did not ask
        return [Check("not set up", ok=False, detail=str(error), optional=True)]
    except HermesRLError as error:
        return [Check("backend", ok=False, detail=str(error))]


async def _checks_of(backend: Backend) -> Sequence[Check]:
    """Ask a backend, which may be another package's.

    Raises:
        SandboxError: It broke, or answered with something else.
    """
    with blamed_on(backend, "in doctor()"):
        checks = list(await backend.doctor())
        if not all(isinstance(check, Check) for check in checks):
            raise TypeError("doctor() must return hermes_rl.sandbox.Check objects")
    return checks


def _settings(options: JSONObject) -> BackendSettings:
    return BackendSettings(run_id=f"cli-{uuid.uuid4().hex[:12]}", options=options)
