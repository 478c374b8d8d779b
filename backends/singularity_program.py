"""The installed Apptainer or Singularity: which, how old, and the command lines we give it.

Only options that Apptainer >= 1.1 and SingularityCE >= 3.8 both document are used:
https://apptainer.org/docs/user/latest/cli/apptainer_exec.html
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hermes_rl.backends.kernel_settings import KERNEL_SETTINGS
from hermes_rl.backends.runtime import MOUNT_POINT
from hermes_rl.errors import BackendUnavailable

__all__ = [
    "HOME",
    "Confinement",
    "Program",
    "find_program",
    "limits_for",
    "no_interfaces",
    "program_environment",
]

NAMES = ("apptainer", "singularity")
OLDEST = {"apptainer": (1, 1), "singularity": (3, 8)}
INSTALL = "Install Apptainer (https://apptainer.org/docs/admin), or use the docker backend."
VERSION_TIMEOUT_S = 20.0
KEPT_ENVIRONMENT = (
    "HOME",
    "PATH",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_HOST",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
"""Of the engine's environment, what the program itself gets besides :data:`OWN_SETTINGS`."""
OWN_SETTINGS = frozenset(
    f"{program}_{setting}"
    for program in ("APPTAINER", "SINGULARITY")
    for setting in (
        "AUTHFILE",
        "CACHEDIR",
        "CONFIGDIR",
        "DISABLE_CACHE",
        "DOCKER_HOST",
        "DOCKER_PASSWORD",
        "DOCKER_USERNAME",
        "LIBRARY",
        "NOHTTPS",
        "TMPDIR",
    )
)
"""Of its own settings, those about fetching and keeping images. Most others are options of
``exec``, which would be added to ours: APPTAINER_BIND shows directories of the host inside."""


@dataclass(slots=True, frozen=True)
class Program:
    """One installed program.

    Attributes:
        path: Where it is.
        name: ``apptainer`` or ``singularity`` (SingularityCE and its ancestors).
        version: Major and minor.
    """

    path: str
    name: str
    version: tuple[int, int]

    @classmethod
    def parse(cls, path: str, text: str) -> Self:
        """Read what ``--version`` prints.

        Raises:
            BackendUnavailable: It is something else, or too old.
        """
        found = re.search(r"(apptainer|singularity)\S* version (\d+)\.(\d+)", text)
        if found is None:
            raise BackendUnavailable(
                f"{path} --version says {text.strip()[:200]!r}, which is neither Apptainer nor "
                f"Singularity. {INSTALL}",
                backend="singularity",
            )
        program = cls(path, found[1], (int(found[2]), int(found[3])))
        oldest = OLDEST[program.name]
        if program.version < oldest:
            raise BackendUnavailable(
                f"{path} is {program}, which is too old: {program.name} "
                f"{oldest[0]}.{oldest[1]} or newer is needed. {INSTALL}",
                backend="singularity",
            )
        return program

    def __str__(self) -> str:
        return f"{self.name} {self.version[0]}.{self.version[1]}"

    def build(self, target: Path, source: str) -> list[str]:
        """Return the command that converts an image of any kind into the SIF file ``target``."""
        return [self.path, "build", str(target), source]

    def list_objects(self, image: Path) -> list[str]:
        """Return the command that lists what a SIF file holds."""
        return [self.path, "sif", "list", str(image)]

    def dump_object(self, image: Path, number: int) -> list[str]:
        """Return the command that prints one of the things a SIF file holds."""
        return [self.path, "sif", "dump", str(number), str(image)]


@dataclass(slots=True, frozen=True)
class Confinement:
    """How containers are confined on this machine; see ``singularity_probe``.

    Attributes:
        program: What starts them.
        user: Options that say who is who inside.
        writable: ``overlay``: changes go to a directory; ``tmpfs``: to a small one in memory.
    """

    program: Program
    user: tuple[str, ...]
    writable: str

    def argv(
        self,
        image: str,
        command: Sequence[str],
        *,
        overlay: Path,
        workdir: Path,
        runtime: Path,
        mnt: Path | None = None,
        home: Path | None = None,
        interfaces: Path | None = None,
        limits: Sequence[str] = (),
    ) -> list[str]:
        """Return the command that runs ``command`` in a container that is apart from the host.

        Args:
            image: A SIF file or a directory.
            command: What to run; becomes process 1.
            overlay: Holds what changes of the root file system.
            workdir: Holds /tmp and /var/tmp.
            runtime: The interpreter, shown read-only.
            mnt: Shown as /mnt, writable.
            home: Mounted as the home directory; None = the image's own.
            interfaces: Given, there is no network, and this directory of :func:`no_interfaces` is
                shown as /sys/class/net: the runtime mounts the host's sysfs, which would tell of
                the host's interfaces.
            limits: From :func:`limits_for`.
        """
        argv = [self.program.path, "exec", "--containall", "--no-init", "--no-umask", *self.user]
        argv += ["--no-home"] if home is None else ["--home", f"{home}:{HOME}"]
        argv += ["--workdir", str(workdir)]
        if self.writable == "overlay":
            argv += ["--overlay", str(overlay)]
        else:
            argv += ["--writable-tmpfs"]
        argv += without_the_hosts_rights() if os.geteuid() == 0 else []
        argv += ["--bind", FULL, "--bind", f"{runtime}:{MOUNT_POINT}:ro"]
        argv += ["--bind", f"{mnt}:/mnt"] if mnt is not None else []
        if interfaces is not None:
            argv += ["--net", "--network", "none", "--bind", f"{interfaces}:{INTERFACES}:ro"]
        return [*argv, "--pwd", "/", *limits, image, *command]


_DROPPED = """
    AUDIT_CONTROL AUDIT_READ BLOCK_SUSPEND DAC_READ_SEARCH IPC_LOCK IPC_OWNER LEASE LINUX_IMMUTABLE
    MAC_ADMIN MAC_OVERRIDE MKNOD NET_ADMIN NET_BROADCAST SYSLOG SYS_ADMIN SYS_BOOT SYS_MODULE
    SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG WAKE_ALARM
"""
"""What Docker does not give its containers either, and MKNOD, which Docker confines."""
INTERFACES = "/sys/class/net"
FULL = "/dev/full"
"""A device that Docker's containers have and contained ones lack."""
HOME = "/home/agent"
"""Where a home directory of ours is mounted, for users that are nobody in the image."""


def no_interfaces(directory: Path) -> Path:
    """Make ``directory`` hold what /sys/class/net holds where there is only loopback. Blocking."""
    directory.mkdir()
    (directory / "lo").symlink_to("../../devices/virtual/net/lo")
    return directory


def without_the_hosts_rights() -> list[str]:
    """Return the options that keep a container of the host's root from the host's kernel.

    Root inside is then the same user to the kernel, in user namespaces, too: it may write the
    kernel's settings without any capability, unless they are read-only and it cannot unmount.
    """
    argv = ["--drop-caps", ",".join(f"CAP_{name}" for name in _DROPPED.split())]
    for path in filter(os.path.exists, KERNEL_SETTINGS):
        argv += ["--bind", f"{path}:{path}:ro"]
    return argv


def limits_for(
    *, cpus: float | None = None, memory_mb: int | None = None, pids: int | None = None
) -> list[str]:
    """Return the options that limit a container."""
    limits = ["--cpus", f"{cpus:g}"] if cpus is not None else []
    limits += ["--memory", str(memory_mb << 20)] if memory_mb is not None else []
    limits += ["--pids-limit", str(pids)] if pids is not None else []
    return limits


def program_environment() -> dict[str, str]:
    """Return the environment the program is started with: nothing of it is for the container."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in KEPT_ENVIRONMENT or name in OWN_SETTINGS
    }


def find_program() -> Program:
    """Return the installed program. Blocking.

    Raises:
        BackendUnavailable: There is none, it does not run, or it is too old.
    """
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        raise BackendUnavailable(
            f"Neither apptainer nor singularity is on PATH. {INSTALL}", backend="singularity"
        )
    try:
        done = subprocess.run(
            [found, "--version"],
            capture_output=True,
            text=True,
            check=False,
            timeout=VERSION_TIMEOUT_S,
            env=program_environment(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendUnavailable(
            f"{found} does not run: {error}. {INSTALL}", backend="singularity"
        ) from error
    return Program.parse(found, done.stdout + done.stderr)
