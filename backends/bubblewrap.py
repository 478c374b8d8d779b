"""Local sandboxes isolated by bubblewrap: own processes, own mounts, no rights.

The sandbox sees this machine's programs (``/usr`` and what belongs to it, read-only), a few files
of ``/etc`` that they need, and of everything else nothing: not the home directories, not ``/var``,
``/opt`` or ``/srv``, not the other processes. Its home and ``/tmp`` are directories on disk; the
rest of its root is memory and gone with it. It has no kernel capabilities, and what sets the kernel
below ``/proc`` is read-only. It shares the network unless that is ``none``. There is no limit on
memory or processes. The outpost runs as process 1 over the mounted interpreter, so nothing inside
can kill or replace it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hermes_rl.backends.kernel_settings import KERNEL_SETTINGS
from hermes_rl.backends.local_directories import SandboxDirectory
from hermes_rl.backends.outpost.start import outpost_options
from hermes_rl.backends.runtime import MOUNT_POINT, Runtime
from hermes_rl.errors import BackendUnavailable
from hermes_rl.sandbox import SandboxSpec

__all__ = [
    "CONFIGURATION",
    "HOME",
    "SYSTEM",
    "HostSystem",
    "bubblewrap_argv",
    "bubblewrap_message",
    "check_bubblewrap",
    "image_argv",
    "path_to_bubblewrap",
]

HOME = "/home/agent"
"""Home and working directory inside."""
_UNSHARED = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
_CONFINED = (
    *("--hostname", "sandbox", "--cap-drop", "ALL", "--as-pid-1"),
    *("--die-with-parent", "--new-session", "--clearenv"),
)
_PROC = (
    *("--proc", "/proc"),
    *(word for path in KERNEL_SETTINGS for word in ("--ro-bind-try", path, path)),
)
"""bubblewrap itself covers some of these settings, but not ``/proc/sys`` (tried: 0.8)."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STATE = "/run/hermes"
CHECK_TIMEOUT_S = 20.0
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = (
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "fonts",
    "group",
    "hosts",
    "inputrc",
    "java",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "login.defs",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "passwd",
    "perl",
    "pki",
    "profile",
    "profile.d",
    "protocols",
    "python3",
    "resolv.conf",
    "services",
    "shells",
    "ssl",
    "terminfo",
    "timezone",
)
"""What programs need of /etc. Nothing secret: no shadow, no ssh keys, no machine-id."""


@dataclass(slots=True, frozen=True, kw_only=True)
class HostSystem:
    """What of a machine, this one or another, its sandboxes see.

    Attributes:
        program: Path of bubblewrap.
        links: Those of :data:`SYSTEM` that are links, and where to.
        directories: Those that are directories.
        configuration: Those of :data:`CONFIGURATION` that exist, and what they really are.
    """

    program: str
    links: Mapping[str, str]
    directories: Sequence[str]
    configuration: Mapping[str, str]

    @classmethod
    def here(cls) -> HostSystem:
        """Look at this machine.

        Raises:
            BackendUnavailable: bubblewrap is not installed.
        """
        found = {name: Path("/etc", name) for name in CONFIGURATION}
        return cls(
            program=path_to_bubblewrap(),
            links={name: os.readlink(name) for name in SYSTEM if os.path.islink(name)},
            directories=[n for n in SYSTEM if os.path.isdir(n) and not os.path.islink(n)],
            configuration={n: str(path.resolve()) for n, path in found.items() if path.exists()},
        )


def path_to_bubblewrap() -> str:
    """Return the program.

    Raises:
        BackendUnavailable: It is not installed.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise BackendUnavailable(
            "local_isolation: bwrap needs bubblewrap. Install it (apt install bubblewrap, dnf "
            "install bubblewrap), or use the docker backend.",
            backend="local",
        )
    return program


def check_bubblewrap(runtime: Runtime) -> None:
    """Start one sandbox for nothing. Blocking.

    Raises:
        BackendUnavailable: It is not installed or this machine does not allow it; says why.
    """
    argv = [*_fixed_arguments(HostSystem.here(), runtime), "--", *runtime.argv("outpost")]
    try:
        result = subprocess.run(
            argv, input=b"", capture_output=True, timeout=CHECK_TIMEOUT_S, check=False
        )
        complaint = result.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        works = result.returncode == 0
    except (OSError, subprocess.TimeoutExpired) as error:
        complaint, works = str(error), False
    if not works:
        raise BackendUnavailable(
            f"bubblewrap cannot isolate here: {complaint or 'no message'}. Unprivileged user "
            "namespaces may be disabled (sysctl kernel.unprivileged_userns_clone=1, or "
            "kernel.apparmor_restrict_unprivileged_userns=0), or use the docker backend.",
            backend="local",
        )


def bubblewrap_message(
    spec: SandboxSpec,
    directory: SandboxDirectory,
    runtime: Runtime,
    *,
    network: str,
    inherited: Mapping[str, str],
) -> dict[str, object]:
    """Return what a helper needs to start the sandbox's outpost under bubblewrap.

    Args:
        spec: The sandbox.
        directory: Its directories on this host.
        runtime: The interpreter to mount.
        network: ``public`` or ``none``.
        inherited: What of the engine's environment commands get.
    """
    return {
        "argv": bubblewrap_argv(
            HostSystem.here(),
            runtime,
            spec,
            home=str(directory.home),
            tmp=str(directory.tmp),
            network=network,
            inherited=inherited,
        ),
        "env": {},
        "remove": [str(directory.top)],
    }


def bubblewrap_argv(
    system: HostSystem,
    runtime: Runtime,
    spec: SandboxSpec,
    *,
    home: str,
    tmp: str,
    network: str,
    inherited: Mapping[str, str],
    silence_s: float | None = None,
) -> list[str]:
    """Return the command that runs a sandbox's outpost over the machine's own programs.

    Args:
        system: The machine.
        runtime: The interpreter to mount, with its path there.
        spec: The sandbox.
        home: Directory on that machine for its home.
        tmp: The same for /tmp.
        network: ``public`` or ``none``.
        inherited: What of the machine's environment commands get.
        silence_s: See :func:`~hermes_rl.backends.outpost.start.outpost_options`.
    """
    cwd = str(PurePosixPath(HOME, (spec.workdir or ".").replace("~", HOME, 1)))
    environment = {**inherited, "PATH": PATH, "HOME": HOME, "TMPDIR": "/tmp", **spec.env}
    argv = _fixed_arguments(system, runtime)
    argv += ["--bind", tmp, "/tmp", "--bind", home, HOME]
    argv += ["--unshare-net"] if network == "none" else []
    argv += ["--dir", cwd, "--chdir", cwd, "--"]
    return [*argv, *_outpost(runtime, spec, environment, silence_s)]


def image_argv(
    program: str,
    runtime: Runtime,
    spec: SandboxSpec,
    *,
    root: str,
    workdir: str,
    silence_s: float | None = None,
) -> list[str]:
    """Return the command that runs a sandbox's outpost in the files of an image, as root there.

    Args:
        program: Path of bubblewrap.
        runtime: The interpreter to mount, with its path on that machine.
        spec: The sandbox.
        root: Directory that becomes the root, for this sandbox alone.
        workdir: Working directory in it, made if it is not there.
        silence_s: See :func:`~hermes_rl.backends.outpost.start.outpost_options`.
    """
    argv = [program, *_UNSHARED, "--unshare-user", "--uid", "0", "--gid", "0", *_CONFINED]
    argv += ["--bind", root, "/", *_PROC, "--dev", "/dev", "--tmpfs", "/run"]
    argv += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
    argv += ["--ro-bind", str(runtime.path), MOUNT_POINT]
    argv += ["--dir", workdir, "--chdir", workdir, "--"]
    return [*argv, *_outpost(runtime, spec, {"PATH": PATH, **spec.env}, silence_s)]


def _outpost(
    runtime: Runtime, spec: SandboxSpec, environment: Mapping[str, str], silence_s: float | None
) -> list[str]:
    options = outpost_options(lease_s=spec.lease_s, silence_s=silence_s, env=environment)
    options += [f"--state-dir={STATE}", f"--runtime-dir={MOUNT_POINT}"]
    return runtime.argv("outpost", *options)


def _fixed_arguments(system: HostSystem, runtime: Runtime) -> list[str]:
    argv = [system.program, "--unshare-user-try", *_UNSHARED, *_CONFINED]
    argv += [*_PROC, "--dev", "/dev", "--perms", "0755", "--dir", "/etc"]
    argv += ["--perms", "0755", "--dir", "/home"]
    for name, target in system.links.items():
        argv += ["--symlink", target, name]
    for name in system.directories:
        argv += ["--ro-bind", name, name]
    for name, source in system.configuration.items():
        argv += ["--ro-bind", source, f"/etc/{name}"]
    argv += ["--dir", "/run", "--dir", "/var/tmp", "--dir", "/root"]
    return [*argv, "--ro-bind", str(runtime.path), MOUNT_POINT]
