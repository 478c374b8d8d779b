"""Local sandboxes isolated by bubblewrap: own processes, own mounts, no rights.

The sandbox sees this machine's programs (``/usr`` and what belongs to it, read-only), a few files
of ``/etc`` that they need, and of everything else nothing: not the home directories, not ``/var``,
``/opt`` or ``/srv``, not the other processes. Its home and ``/tmp`` are directories on disk; the
rest of its root is memory and gone with it. It has no kernel capabilities and cannot make user
namespaces. It shares the network unless that is ``none``. There is no limit on memory or
processes. The outpost runs as process 1 over the mounted interpreter, so nothing inside can kill
or replace it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from hermes_rl.backends.local_directories import SandboxDirectory
from hermes_rl.backends.runtime import MOUNT_POINT, Runtime
from hermes_rl.errors import BackendUnavailable
from hermes_rl.sandbox import SandboxSpec

__all__ = ["HOME", "bubblewrap_message", "check_bubblewrap", "path_to_bubblewrap"]

HOME = "/home/agent"
"""Home and working directory inside."""
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
    argv = [*_fixed_arguments(path_to_bubblewrap(), runtime), "--", *runtime.argv("outpost")]
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
    cwd = str(PurePosixPath(HOME, (spec.workdir or ".").replace("~", HOME, 1)))
    environment = {**inherited, "PATH": PATH, "HOME": HOME, "TMPDIR": "/tmp", **spec.env}
    argv = _fixed_arguments(path_to_bubblewrap(), runtime)
    argv += ["--bind", str(directory.tmp), "/tmp", "--bind", str(directory.home), HOME]
    argv += ["--unshare-net"] if network == "none" else []
    argv += ["--dir", cwd, "--chdir", cwd, "--"]
    options = [f"--env={name}={value}" for name, value in environment.items()]
    options += [f"--state-dir={STATE}", f"--lease-s={spec.lease_s}", f"--runtime-dir={MOUNT_POINT}"]
    return {
        "argv": [*argv, *runtime.argv("outpost", *options)],
        "env": {},
        "remove": [str(directory.top)],
    }


def _fixed_arguments(program: str, runtime: Runtime) -> list[str]:
    argv = [program, "--unshare-user-try", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    argv += ["--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
    argv += ["--as-pid-1", "--die-with-parent", "--new-session", "--clearenv"]
    argv += ["--proc", "/proc", "--dev", "/dev", "--perms", "0755", "--dir", "/etc"]
    argv += ["--perms", "0755", "--dir", "/home"]
    for name in SYSTEM:
        if os.path.islink(name):
            argv += ["--symlink", os.readlink(name), name]
        elif os.path.isdir(name):
            argv += ["--ro-bind", name, name]
    for name in CONFIGURATION:
        source = Path("/etc", name)
        if source.exists():
            argv += ["--ro-bind", str(source.resolve()), f"/etc/{name}"]
    argv += ["--dir", "/run", "--dir", "/var/tmp", "--dir", "/root"]
    return [*argv, "--ro-bind", str(runtime.path), MOUNT_POINT]
