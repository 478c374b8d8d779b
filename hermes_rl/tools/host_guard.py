"""Guards for sandboxes that do not isolate: an agent's slip must not damage the user's machine.

Only used where the sandbox lacks the capability ``isolation`` (the plain local backend). In every
isolated sandbox nothing is refused: the sandbox is the boundary. This is a seat belt against
accidents, not a security boundary; use an isolating backend for untrusted models.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from itertools import dropwhile

from hermes_rl.tools.threads import in_thread

__all__ = ["guard_command", "refuse_command", "refuse_write"]

MAX_GUARDED_CHARS = 100_000
"""Of a command that is looked at: the look must stay cheap."""
QUICK_CHARS = 10_000
"""A command up to this is looked at on the event loop: 3 ms at most. A longer one may take 30."""

_SYSTEM_DIRECTORIES = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/root/.ssh", "/sbin",
    "/sys", "/usr", "/var/lib", "/var/run/docker.sock", "/run/docker.sock",
)  # fmt: skip
_WRITABLE = ("/dev/null", "/dev/shm", "/dev/stdout", "/dev/stderr")
_PRECIOUS = frozenset(["/", *_SYSTEM_DIRECTORIES, "/home", "/opt", "/root", "/run", "/srv", "/var"])
_SEPARATORS = re.compile(r"[;&|\n(){}`]+")
_PREFIXES = frozenset(["sudo", "exec", "env", "nohup", "time", "then", "do", "else", "!"])
_STOPPERS = frozenset(["shutdown", "reboot", "halt", "poweroff", "telinit"])
_DISK = r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk)"
_OVERWRITTEN_DISK = re.compile(rf">\s*{_DISK}|\bof={_DISK}")


async def guard_command(command: str) -> str | None:
    """Do as :func:`refuse_command`, in a thread if the command is long."""
    if len(command) <= QUICK_CHARS:
        return refuse_command(command)
    return await in_thread(refuse_command, command)


def refuse_command(command: str) -> str | None:
    """Return why ``command`` is not run without isolation, None if it may run."""
    text = command[:MAX_GUARDED_CHARS]
    why = next(filter(None, map(_harm, _simple_commands(text))), None)
    if why is None and _OVERWRITTEN_DISK.search(text):
        why = "it overwrites a disk of the host"
    squeezed = "".join(text.split())
    if why is None and ":(){" in squeezed and ":|:" in squeezed:
        why = "it is a fork bomb"
    if why is None:
        return None
    return (
        f"Blocked: {why}, and this sandbox does not isolate (backend 'local'). "
        "Use an isolating backend such as docker for tasks that need this."
    )


def _simple_commands(text: str) -> Iterator[Sequence[str]]:
    """Yield the words of each command, without what may stand before its name."""
    for part in _SEPARATORS.split(text):
        words = list(dropwhile(_is_before_name, part.split()))
        if words:
            yield words


def _is_before_name(word: str) -> bool:
    return word in _PREFIXES or "=" in word


def _harm(words: Sequence[str]) -> str | None:
    name, arguments = words[0].rpartition("/")[2], words[1:]
    options = [word for word in arguments if word.startswith("-")]
    others = [word for word in arguments if not word.startswith("-")]
    if name == "rm" and _is_recursive(options) and any(map(_is_precious, others)):
        return "it deletes a system directory of the host"
    if name.partition(".")[0] == "mkfs" and arguments:
        return "it formats a file system of the host"
    if name in _STOPPERS and set(others) <= {"now", "0", "6"}:
        return "it stops the host"
    if name == "init" and set(others) & {"0", "6"}:
        return "it stops the host"
    if name == "kill" and "-1" in arguments[1:]:
        return "it kills every process of the host's user"
    return None


def _is_recursive(options: Sequence[str]) -> bool:
    return any(
        option == "--recursive" or (option[:2] != "--" and "r" in option.lower())
        for option in options
    )


def _is_precious(word: str) -> bool:
    path = word.strip("'\"")
    return path.startswith("/") and _normal(path.rstrip("*")) in _PRECIOUS


def refuse_write(path: str) -> str | None:
    """Return why the absolute ``path`` is not written without isolation, None if it may be."""
    path = _normal(path)
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


def _normal(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")
