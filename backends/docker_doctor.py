"""Looking at a daemon without changing anything there: checks, and the sandboxes of all runs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_rl.backends.admission import Admission
from hermes_rl.backends.docker_connection import docker_host
from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import EngineFailure, translated
from hermes_rl.backends.docker_options import DockerOptions
from hermes_rl.backends.docker_reaper import Reaper
from hermes_rl.backends.ownership import Owner
from hermes_rl.backends.runtime import ensure_runtime
from hermes_rl.errors import BackendUnavailable, ConfigError
from hermes_rl.sandbox import BackendSettings, Check, SandboxRecord

__all__ = ["examine", "list_records"]

_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "process", "CpuCfsQuota": "CPU"}


async def examine(settings: BackendSettings, options: DockerOptions) -> Sequence[Check]:
    """Return the checks; changes nothing on the daemon."""
    checks = [await _interpreter(settings)]
    try:
        with translated("connect"):
            host = docker_host()
            async with DockerEngine(host) as engine:
                info = await engine.json("info")
                checks += [_daemon(host, info), _limits(info)]
                checks += [await _image(engine, options), await _leftovers(engine)]
    except (BackendUnavailable, ConfigError) as error:
        checks.append(Check("docker daemon", ok=False, detail=str(error), fix=str(error)))
    return checks


async def _interpreter(settings: BackendSettings) -> Check:
    """Make it if it is not there: only so is it known that it can be made."""
    name = "interpreter for sandboxes"
    try:
        await ensure_runtime(settings.cache_dir)
    except BackendUnavailable as error:
        return Check(name, ok=False, detail=str(error), fix=str(error))
    detail = f"Python {platform.python_version()} on {sys.platform} {platform.machine()}"
    return Check(name, ok=True, detail=detail)


def _daemon(host: str, info: Mapping[str, Any]) -> Check:
    detail = (
        f"{host}, version {info.get('ServerVersion')}, {info.get('NCPU')} cores, "
        f"{info.get('MemTotal', 0) >> 20} MiB, cgroup v{info.get('CgroupVersion', '1')}"
    )
    is_linux = info.get("OSType") == "linux"
    return Check("docker daemon", is_linux, detail, "switch the daemon to Linux containers")


def _limits(info: Mapping[str, Any]) -> Check:
    missing = [word for name, word in _LIMITS.items() if not info.get(name, True)]
    detail = f"no {', '.join(missing)} limit" if missing else "memory, processes, CPU"
    fix = "delegate the controllers to the daemon (rootless: systemd delegation of cgroup v2)"
    return Check("docker limits", not missing, detail, fix)


async def _image(engine: DockerEngine, options: DockerOptions) -> Check:
    if options.image is None:
        return Check("docker image", ok=True, detail="tasks name their own")
    try:
        await engine.json(f"images/{options.image}/json")
    except EngineFailure as failure:
        if failure.status != 404:
            raise
        return Check(
            "docker image", False, f"{options.image} is not here", f"docker pull {options.image}"
        )
    return Check("docker image", ok=True, detail=f"{options.image} is here")


async def list_records() -> Sequence[SandboxRecord]:
    """Return the containers of all runs, in every state."""
    with translated("connect"):
        async with DockerEngine(docker_host()) as engine:
            return await _records(engine)


async def _records(engine: DockerEngine) -> Sequence[SandboxRecord]:
    return await Reaper(engine, Admission(starting=1, removing=1), Owner.current()).records()


async def _leftovers(engine: DockerEngine) -> Check:
    records = await _records(engine)
    stale = [record.id for record in records if record.verdict != "keep"]
    detail = f"{len(records)} of all runs, {len(stale)} without an owner or past their deadline"
    return Check("docker sandboxes", not stale, detail, "hermes_rl sandboxes clean")
