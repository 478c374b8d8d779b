"""What to do when this machine refuses what a sandbox on it needs: files, processes, disk."""

from __future__ import annotations

import errno

from hermes_rl.errors import BackendUnavailable, Capacity, SandboxError

__all__ = ["cannot_start", "fix_for"]

_DISK = "make room on the disk (TMPDIR may name another)"
_PROCESSES = "raise the limit on processes (ulimit -u, or pids.max of the cgroup)"
_FIXES = {
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit on open files (sysctl fs.file-max)",
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: "free some memory",
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
}


def fix_for(error: OSError) -> str | None:
    """Return what helps against an error of the operating system; None if that is not known."""
    return _FIXES.get(error.errno or 0)


def cannot_start(error: OSError, *, backend: str, sandbox_id: str | None = None) -> SandboxError:
    """Return the error for a sandbox that the operating system did not let us start."""
    fix = fix_for(error)
    if fix is None:
        return BackendUnavailable(
            f"A sandbox cannot be started: {error}.", backend=backend, sandbox_id=sandbox_id
        )
    return Capacity(
        f"This machine has no room for another sandbox: {error}. Lower "
        f"--env.max_running_sandboxes, or {fix}.",
        backend=backend,
        sandbox_id=sandbox_id,
    )
