"""From a spec to the engine's container configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hermes_rl.backends.docker_options import DockerOptions
from hermes_rl.backends.runtime import MOUNT_POINT, Runtime
from hermes_rl.sandbox import Capability, Network, SandboxSpec

if TYPE_CHECKING:
    from hermes_rl.backends.docker_images import Image

__all__ = ["STATE_DIR", "ContainerPlan", "container_config"]

DEFAULT_MEMORY_MB = 4096
DEFAULT_PIDS = 4096
STATE_DIR = "/dev/shm/.hermes"
"""Where the outpost keeps session state: not in the image's files, so not among the changes, and
out of the way of ``rm -rf /tmp/*``."""
SUPERVISOR_CAPABILITIES = ("KILL", "SETGID", "SETUID")
"""What the outpost needs to run commands as other users and to end them."""
WRITABLE = dict.fromkeys(("/tmp", "/var/tmp", "/run"), "rw,exec,mode=1777")
"""Mounted as tmpfs where the root file system is read-only."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ContainerPlan:
    """Everything that decides a container's configuration.

    Attributes:
        cores: Of the daemon's machine.
        capabilities: What the daemon can do; a limit it cannot enforce is not set.
        volume: Name of the volume that holds the runtime; None = a bind mount.
    """

    spec: SandboxSpec
    image: Image
    runtime: Runtime
    options: DockerOptions
    labels: Mapping[str, str]
    network: Network
    cores: int
    capabilities: frozenset[Capability]
    volume: str | None = None

    @property
    def user(self) -> str:
        """Who commands run as; empty = root."""
        return self.spec.user or self.image.user

    @property
    def workdir(self) -> str:
        """Where commands start."""
        return os.path.join("/", self.spec.workdir or self.image.workdir or "/")

    @property
    def env(self) -> dict[str, str]:
        """Environment of commands: the image's, then the spec's."""
        return {**self.image.env, **self.spec.env}


def container_config(plan: ContainerPlan) -> dict[str, Any]:
    """Return the body of the engine's create call."""
    outpost = plan.runtime.argv("outpost", *_outpost_options(plan))
    return {
        "Image": plan.image.id,
        "Entrypoint": outpost[:1],
        "Cmd": outpost[1:],
        "User": "0:0",
        "WorkingDir": plan.workdir,
        "Env": _environment(plan),
        "Labels": dict(plan.labels),
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        # The supervisor heeds no signal; a daemon that shuts down need not wait for it.
        "StopSignal": "SIGKILL",
        "HostConfig": _host_config(plan),
    }


def _outpost_options(plan: ContainerPlan) -> list[str]:
    options = [f"--lease-s={plan.spec.lease_s}", f"--runtime-dir={MOUNT_POINT}"]
    options.append(f"--state-dir={STATE_DIR}")
    if plan.user:
        options.append(f"--user={plan.user}")
    options += [f"--env={name}={plan.env[name]}" for name in plan.env if _misleads_loader(name)]
    return options


def _environment(plan: ContainerPlan) -> list[str]:
    """Return the outpost's environment, which commands inherit.

    An entry without a value removes the image's: what the image preloads into every process must
    reach the commands but not our interpreter.
    """
    return [
        name if _misleads_loader(name) else f"{name}={value}"
        for name, value in plan.env.items()
        if name not in plan.image.env or name in plan.spec.env or _misleads_loader(name)
    ]


def _misleads_loader(name: str) -> bool:
    return name.startswith("LD_")


def _host_config(plan: ContainerPlan) -> dict[str, Any]:
    config: dict[str, Any] = {
        "AutoRemove": True,
        "Init": False,
        "LogConfig": {"Type": "none"},
        "NetworkMode": "none" if plan.network == "none" else "bridge",
        "Mounts": [_runtime_mount(plan)],
        **_limits(plan),
    }
    if plan.options.hardening == "strict":
        config["CapDrop"] = ["ALL"]
        config["CapAdd"] = list(SUPERVISOR_CAPABILITIES)
        config["SecurityOpt"] = ["no-new-privileges"]
    if plan.options.read_only:
        config["ReadonlyRootfs"] = True
        config["Tmpfs"] = WRITABLE
    return config


def _runtime_mount(plan: ContainerPlan) -> dict[str, Any]:
    mount: dict[str, Any] = {"Target": MOUNT_POINT, "ReadOnly": True}
    if plan.volume is None:
        return {**mount, "Type": "bind", "Source": str(plan.runtime.path)}
    no_copy = {"NoCopy": True}
    return {**mount, "Type": "volume", "Source": plan.volume, "VolumeOptions": no_copy}


def _limits(plan: ContainerPlan) -> dict[str, int]:
    limits: dict[str, int] = {}
    if Capability.MEMORY_LIMIT in plan.capabilities:
        memory_bytes = (plan.spec.memory_mb or DEFAULT_MEMORY_MB) << 20
        limits |= {"Memory": memory_bytes, "MemorySwap": memory_bytes}
    if Capability.PIDS_LIMIT in plan.capabilities:
        limits["PidsLimit"] = plan.spec.pids or DEFAULT_PIDS
    if plan.spec.cpus is not None and Capability.CPU_LIMIT in plan.capabilities:
        # The daemon refuses more than the machine has, where it would be no limit at all.
        limits["NanoCpus"] = int(min(plan.spec.cpus, plan.cores) * 1e9)
    return limits
