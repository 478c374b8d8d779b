"""Check what backends, task sets and extras need on this machine; changes nothing.

Without names, all are looked at; what was never set up (its extra, program or account is missing)
is named and is no fault. With names, it is one, but for extras. Exits with 0 if all is well, else
with 1. ``--env.backend_options`` are those of the one backend that is named.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import anyio

from hermes_rl.author_code import failure_text
from hermes_rl.cli.backend_flags import backend_options
from hermes_rl.cli.exit_codes import ExitCode
from hermes_rl.cli.plain import printable
from hermes_rl.cli.task_sets import find_tasks, task_set_names
from hermes_rl.config import EnvConfig
from hermes_rl.config_sources import Flag, load_dotenv
from hermes_rl.errors import (
    ConfigError,
    HermesRLError,
    MissingExtra,
    NotSetUp,
    TaskError,
    UnknownName,
)
from hermes_rl.foreign_backend import blamed_on
from hermes_rl.sandbox import Backend, BackendSettings, Check, backend_names, open_backend
from hermes_rl.types import JSONObject

EXTRAS = "extras"
_EXTRAS = (
    ("atroposlib", "atropos", "training and SFT data (serve, process)"),
    ("transformers", "tokens", "exact tokens (server_type vllm, sglang)"),
    ("xllamacpp", "local", "the embedded model"),
    ("datasets", "datasets", "data sets"),
    ("wandb", "wandb", "Weights & Biases"),
    ("hermes-agent", "hermes", "hermes-agent's own tools"),
)
"""Package, extra, and what it is for; those of backends are their own checks."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``doctor``."""
    parser.add_argument(
        "name", nargs="*", help="only these: backends, task sets, or 'extras' (default: all)"
    )


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Print the checks."""
    options = backend_options(flags, command="doctor")
    if options and len(arguments.name) != 1:
        raise ConfigError("--env.backend_options are one backend's: name it, as in 'doctor ssh'.")
    load_dotenv(Path.cwd())
    return anyio.run(_examine, arguments.name, options)


async def _examine(wanted: Sequence[str], options: JSONObject) -> int:
    all_well = True
    for name in wanted or [*backend_names(), *task_set_names(), EXTRAS]:
        checks = await _checks(name, options)
        if not checks:
            continue
        print(f"{name}:")
        for check in checks:
            is_unwanted = check.optional and (not wanted or name == EXTRAS)
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
    """Ask what is behind a name; what cannot even be opened is a failed check.

    Raises:
        UnknownName: Nothing is.
    """
    known = [*backend_names(), *task_set_names(), EXTRAS]
    if name not in known:
        raise UnknownName.of("backend or task set", name, known)
    try:
        if name == EXTRAS:
            return [_extra(*words) for words in _EXTRAS]
        if name in backend_names():
            return await _checks_of_backend(open_backend(name, _settings(options)))
        return await _checks_of_tasks(name)
    except (MissingExtra, NotSetUp) as error:  # of no concern to who did not ask
        return [Check("not set up", ok=False, detail=str(error), optional=True)]
    except HermesRLError as error:
        kind = "backend" if name in backend_names() else "task set"
        return [Check(kind, ok=False, detail=str(error))]


async def _checks_of_backend(backend: Backend) -> Sequence[Check]:
    """Ask a backend, which may be another package's.

    Raises:
        SandboxError: It broke, or answered with something else.
    """
    with blamed_on(backend, "in doctor()"):
        return _checked(await backend.doctor())


async def _checks_of_tasks(name: str) -> Sequence[Check]:
    """Ask a task set, if it can be asked; it may be another package's.

    Raises:
        TaskError: It broke, or answered with something else.
    """
    task_set = find_tasks(name).make(EnvConfig())
    doctor = getattr(task_set, "doctor", None)
    if doctor is None:
        return []
    try:
        return _checked(await doctor())
    except HermesRLError:
        raise
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        raise TaskError(f"doctor() of {name} failed: {failure_text(error)}") from error


def _checked(checks: Iterable[Check]) -> list[Check]:
    made = list(checks)
    if not all(isinstance(check, Check) for check in made):
        raise TypeError("doctor() must return hermes_rl.sandbox.Check objects")
    return made


def _extra(distribution: str, extra: str, what_for: str) -> Check:
    try:
        return Check(what_for, ok=True, detail=f"{distribution} {version(distribution)}")
    except PackageNotFoundError:
        fix = f"pip install 'hermes_rl[{extra}]'"
        return Check(what_for, False, f"{distribution} is not installed", fix, optional=True)


def _settings(options: JSONObject) -> BackendSettings:
    return BackendSettings(run_id=f"cli-{uuid.uuid4().hex[:12]}", options=options)
