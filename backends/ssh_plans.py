"""What a guard on a host is told about the sandbox it is to start and keep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from hermes_rl.backends.bubblewrap import bubblewrap_argv, image_argv
from hermes_rl.backends.outpost.start import outpost_options
from hermes_rl.backends.runtime import Runtime
from hermes_rl.backends.shipment_script import TABLE
from hermes_rl.backends.ssh_host import HostFacts
from hermes_rl.sandbox import SandboxSpec

__all__ = ["directory_plan", "image_plan", "isolated_plan"]

SILENCE_S = 180.0
"""An outpost that hears nothing from us for so long ends: we are dead or cut off."""


def directory_plan(top: str, spec: SandboxSpec, facts: HostFacts) -> dict[str, Any]:
    """Return the plan of a sandbox that is a directory and processes of the login user's."""
    home = PurePosixPath(top, "home")
    workdir = spec.workdir or "."
    cwd = PurePosixPath(home, workdir.replace("~", str(home), 1))
    made = [] if PurePosixPath(workdir).is_absolute() else [str(cwd)]
    environment = {
        **facts.environment,
        "HOME": str(home),
        "TMPDIR": f"{top}/tmp",
        **spec.env,
    }
    options = outpost_options(lease_s=spec.lease_s, silence_s=SILENCE_S, env=environment)
    return {
        **_plan(top, spec),
        "directories": ["home", "tmp", "state", *made],
        "cwd": str(cwd),
        "options": [*options, f"--state-dir={top}/state", f"--remove={top}"],
    }


def isolated_plan(top: str, spec: SandboxSpec, facts: HostFacts, *, network: str) -> dict[str, Any]:
    """Return the plan of a sandbox in bubblewrap over the host's own programs."""
    there = _interpreter(facts)
    argv = bubblewrap_argv(
        facts.system,
        there,
        spec,
        home=f"{top}/home",
        tmp=f"{top}/tmp",
        network=network,
        inherited=facts.environment,
        silence_s=SILENCE_S,
    )
    return {
        **_plan(top, spec),
        "directories": ["home", "tmp"],
        "needed": [str(there.path / TABLE)],
        "argv": argv,
    }


def image_plan(
    top: str,
    spec: SandboxSpec,
    facts: HostFacts,
    *,
    network: str,
    files: str,
    workdir: str,
) -> dict[str, Any]:
    """Return the plan of a sandbox in bubblewrap over the files of an image.

    Args:
        top: Its directory on the host.
        spec: The sandbox.
        facts: Of the host.
        network: ``public`` or ``none``.
        files: The image's directory on the host.
        workdir: Working directory inside.
    """
    there = _interpreter(facts)
    argv = image_argv(
        facts.system.program,
        there,
        spec,
        root=f"{top}/root",
        workdir=workdir,
        silence_s=SILENCE_S,
    )
    return {
        **_plan(top, spec),
        "directories": ["root", "upper", "work"],
        "needed": [str(there.path / TABLE), files],
        "argv": argv,
        "image": {"root": files, "has_network": network != "none"},
    }


def _interpreter(facts: HostFacts) -> Runtime:
    assert facts.runtime is not None  # a host for isolated sandboxes has been brought ours
    return facts.runtime


def _plan(top: str, spec: SandboxSpec) -> Mapping[str, Any]:
    return {
        "top": top,
        "lease_s": spec.lease_s,
        "directories": [],
        "needed": [],
        "cwd": top,
        "options": [],
        "argv": None,
        "image": None,
    }
