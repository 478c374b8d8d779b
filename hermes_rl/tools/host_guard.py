"""Guards for sandboxes that do not isolate: an agent's slip must not damage the user's machine.

Only used where the sandbox lacks the capability ``isolation`` (the plain local backend). In every
isolated sandbox nothing is refused: the sandbox is the boundary. This is a seat belt against
accidents, not a security boundary; use an isolating backend for untrusted models.
"""

from __future__ import annotations

import posixpath
import re

__all__ = ["refuse_command", "refuse_write"]

_SYSTEM_DIRECTORIES = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root/.ssh", "/sbin",
    "/sys", "/usr", "/var/lib", "/var/run/docker.sock", "/run/docker.sock",
)  # fmt: skip
_WRITABLE = ("/dev/null", "/dev/shm", "/dev/stdout", "/dev/stderr", "/usr/local/src")
_WIPED = r"(?:/(?:\*|bin|boot|dev|etc|home|lib|lib64|opt|root|sbin|srv|sys|usr|var)?/?\*?)"
_AT_COMMAND = r"(?:^|[;&|\n(]|\b(?:sudo|exec|then|do|else)\s)\s*"
_CATASTROPHES = (
    (re.compile(_AT_COMMAND + r"rm\s(?:[^;&|\n]*\s)?-[a-zA-Z]*[rR][^;&|\n]*\s" + _WIPED
                + r"(?=\s|$|[;&|)\n])"), "it deletes a system directory of the host"),
    (re.compile(_AT_COMMAND + r"mkfs(?:\.\w+)?\s"), "it formats a file system of the host"),
    (re.compile(r"\bdd\s[^;&|\n]*\bof=/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk)"),
     "it overwrites a disk of the host"),
    (re.compile(r">\s*/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk)\w"),
     "it overwrites a disk of the host"),
    (re.compile(_AT_COMMAND + r"(?:shutdown|reboot|halt|poweroff|telinit|init\s+[06])\b"),
     "it stops the host"),
    (re.compile(_AT_COMMAND + r"kill\s+(?:-\w+\s+)*(?:--\s+)?-1(?=\s|$|[;&|)\n])"),
     "it kills every process of the host's user"),
    (re.compile(r":\s*\(\)\s*\{[^}]*:\s*\|\s*:"), "it is a fork bomb"),
)  # fmt: skip


def refuse_command(command: str) -> str | None:
    """Return why ``command`` is not run without isolation, None if it may run."""
    for pattern, why in _CATASTROPHES:
        if pattern.search(command):
            return (
                f"Blocked: {why}, and this sandbox does not isolate (backend 'local'). "
                "Use an isolating backend such as docker for tasks that need this."
            )
    return None


def refuse_write(path: str) -> str | None:
    """Return why the absolute ``path`` is not written without isolation, None if it may be."""
    path = posixpath.normpath(path)
    if any(_within(path, allowed) for allowed in _WRITABLE):
        return None
    for directory in _SYSTEM_DIRECTORIES:
        if _within(path, directory):
            return (
                f"Refusing to write {path}: it is a system path of the host, and this sandbox "
                "does not isolate (backend 'local'). Write inside the working directory, or use "
                "an isolating backend such as docker."
            )
    return None


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")
