"""List the sandboxes of all runs, or remove those whose run is dead or whose time is over.

``clean`` removes a sandbox only if the process that owns it has ended on this machine, or if it is
past its deadline; never one of a run that lives. ``--env.backend_options`` are the backend's.
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

import anyio

from hermes_rl.cli.backend_flags import backend_options
from hermes_rl.config_sources import Flag, load_dotenv
from hermes_rl.errors import ConfigError
from hermes_rl.foreign_backend import blamed_on, connected
from hermes_rl.sandbox import (
    Backend,
    BackendSettings,
    Inventory,
    SandboxRecord,
    backend_names,
    open_backend,
)
from hermes_rl.types import JSONObject

COLUMNS = ("ID", "STATE", "RUN", "TIME LEFT", "SWEEP", "IMAGE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``sandboxes``."""
    parser.add_argument("action", choices=["list", "clean"], help="list, or remove leftovers")
    parser.add_argument(
        "--backend", default="docker", choices=backend_names(), help="default: docker"
    )


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """List or clean."""
    options = backend_options(flags, command="sandboxes")
    load_dotenv(Path.cwd())
    action = {"list": _list, "clean": _clean}[arguments.action]
    anyio.run(action, open_backend(arguments.backend, _settings(options)))
    return 0


async def _list(backend: Backend) -> None:
    if not isinstance(backend, Inventory):
        raise ConfigError(f"The backend {backend.name!r} cannot list its sandboxes.")
    with blamed_on(backend, "in records()"):
        rows = [_row(record) for record in await backend.records()]
    if not rows:
        print(f"{backend.name}: no sandboxes")
        return
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for row in [COLUMNS, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


async def _clean(backend: Backend) -> None:
    async with connected(backend):
        with blamed_on(backend, "in sweep()"):
            removed = await backend.sweep()
    print("\n".join([*removed, f"{backend.name}: removed {len(removed)}"]))


def _settings(options: JSONObject) -> BackendSettings:
    return BackendSettings(run_id=f"cli-{uuid.uuid4().hex[:12]}", options=options)


def _row(record: SandboxRecord) -> tuple[str, ...]:
    left = "" if record.deadline_s is None else _duration(record.deadline_s - time.time())
    return (record.id, record.state, record.run, left, record.verdict, record.image)


def _duration(seconds: float) -> str:
    """A duration as people say it; negative when it is over."""
    sign, rest = ("-", -seconds) if seconds < 0 else ("", seconds)
    hours, minutes = divmod(int(rest) // 60, 60)
    return f"{sign}{hours}h{minutes:02}m" if hours else f"{sign}{minutes}m{int(rest) % 60:02}s"
