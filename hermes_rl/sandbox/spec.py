"""What a sandbox must be, and what a backend can make of that."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

__all__ = ["Capability", "HealthCheck", "Network", "SandboxSpec"]

Network = Literal["public", "none"]


class Capability(enum.StrEnum):
    """What a backend or one sandbox can do beyond running commands and moving files."""

    ISOLATION = "isolation"
    """The host's files and processes are out of reach of the sandbox."""
    BASH = "bash"
    """The image has bash: functions and aliases persist within a session (sandbox only)."""
    IMAGES = "images"
    DOCKERFILE = "dockerfile"
    USERS = "users"
    """Commands can run as another user."""
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    PIDS_LIMIT = "pids_limit"
    NETWORK_NONE = "network_none"
    NETWORK_PUBLIC = "network_public"
    PAUSE = "pause"
    CHANGES = "changes"
    """``changes()`` lists what differs from the image."""
    ENGINE_ACCESS = "engine_access"
    """``trusted=True`` reads and commands go around everything inside the sandbox."""
    PTY = "pty"
    GPU = "gpu"


@dataclass(slots=True, frozen=True, kw_only=True)
class HealthCheck:
    """A command polled after start until it exits 0. Times in seconds; as in task.toml."""

    command: str
    interval_s: float = 5.0
    timeout_s: float = 30.0
    start_period_s: float = 0.0
    retries: int = 3


@dataclass(slots=True, frozen=True, kw_only=True)
class SandboxSpec:
    """What a sandbox must be. Immutable; a backend that cannot honour a field refuses up front.

    Attributes:
        image: Image name. None with no ``dockerfile_dir`` = the backend's default.
        dockerfile_dir: Build context holding a ``Dockerfile``; built once per content.
        build_timeout_s: Wall clock for pull or build. Waiting for a turn at it never counts.
        start_timeout_s: Wall clock from the backend's permit to start until the sandbox is up and
            healthy, image work excluded. Waiting for the permit never counts.
        cpus: Cores; None = unlimited.
        memory_mb: MiB; None = the backend's default.
        pids: Process limit; None = the backend's default.
        gpus: GPU count.
        network: ``public``, ``none``, or None = the backend's default.
        env: Environment of every command.
        user: User name or uid of commands; None = the image's.
        workdir: Working directory of commands; None = the image's.
        lease_s: Seconds the sandbox may live from its creation; never extended.
        labels: Extra labels, e.g. the task and attempt.
        startup: Command started in the background right after start.
        image_command: Start the image's own ENTRYPOINT and CMD in the background first.
        healthcheck: Polled before the sandbox is handed out.
        needs: Capabilities without which the task must be skipped.
        not_on: Backends by name on which the task is skipped, and why: what no capability says.
    """

    image: str | None = None
    dockerfile_dir: Path | None = None
    build_timeout_s: float = 600.0
    start_timeout_s: float = 600.0
    cpus: float | None = None
    memory_mb: int | None = None
    pids: int | None = None
    gpus: int = 0
    network: Network | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    lease_s: float = 3600.0
    labels: Mapping[str, str] = field(default_factory=dict)
    startup: str | Sequence[str] | None = None
    image_command: bool = False
    healthcheck: HealthCheck | None = None
    needs: frozenset[Capability] = frozenset()
    not_on: Mapping[str, str] = field(default_factory=dict)

    def required_capabilities(self) -> frozenset[Capability]:
        """Return ``needs`` plus what the other fields imply (a limit, a network, a user ...)."""
        implied = {
            Capability.IMAGES: self.image is not None,
            Capability.DOCKERFILE: self.dockerfile_dir is not None,
            Capability.CPU_LIMIT: self.cpus is not None,
            Capability.MEMORY_LIMIT: self.memory_mb is not None,
            Capability.PIDS_LIMIT: self.pids is not None,
            Capability.GPU: self.gpus > 0,
            Capability.NETWORK_NONE: self.network == "none",
            Capability.NETWORK_PUBLIC: self.network == "public",
            Capability.USERS: self.user is not None,
        }
        return self.needs | {capability for capability, wanted in implied.items() if wanted}
