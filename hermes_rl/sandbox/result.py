"""What comes back from a sandbox: results, output, directory entries, changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "DEFAULT_MAX_OUTPUT_BYTES",
    "TIMEOUT_EXIT_CODE",
    "UNFINISHED_SEARCH",
    "Change",
    "DirEntry",
    "ExecResult",
    "ProcessChunk",
]

DEFAULT_MAX_OUTPUT_BYTES = 256 * 1024
"""Output bytes kept per stream of one command (head 40 %, tail 60 %); the rest is counted."""
TIMEOUT_EXIT_CODE = 124
"""Exit code of a command that met its deadline, as ``timeout(1)`` has it."""

UNFINISHED_SEARCH = "(search for rewritten files)"
"""Path of the change that stands for all that ``Sandbox.changes()`` could not find out because
something in the sandbox kept it from it. No real path is like it: they begin with a slash."""


@dataclass(slots=True, frozen=True, kw_only=True)
class ExecResult:
    """How a command ended.

    Attributes:
        exit_code: 0-255; 128+N for signal N; 124 when ``timed_out``.
        stdout: Kept bytes: head followed by tail. Holds stderr too when streams were merged.
        stderr: Kept bytes of stderr, b"" when merged.
        timed_out: The deadline passed and the command was killed.
        signal: Signal that ended the command, None if it exited.
        stdout_total: Bytes produced on stdout, kept or not.
        stderr_total: Bytes produced on stderr, kept or not.
        stdout_head: Length of the head within ``stdout``; bytes were omitted there if
            ``stdout_total > len(stdout)``.
        stderr_head: The same for ``stderr``.
        duration_s: Wall seconds inside the sandbox.
        background: Processes of this command still hold its output open.
        cwd: Working directory of the session after the command, None if unknown.
    """

    exit_code: int
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    signal: int | None = None
    stdout_total: int = 0
    stderr_total: int = 0
    stdout_head: int = 0
    stderr_head: int = 0
    duration_s: float = 0.0
    background: bool = False
    cwd: str | None = None

    @property
    def text(self) -> str:
        """``stdout`` as text; undecodable bytes become U+FFFD. No omission marker."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """``stderr`` as text; undecodable bytes become U+FFFD."""
        return self.stderr.decode("utf-8", "replace")


@dataclass(slots=True, frozen=True)
class ProcessChunk:
    """A piece of output: ``fd`` is 1 or 2 (always 1 when merged)."""

    fd: int
    data: bytes


@dataclass(slots=True, frozen=True)
class DirEntry:
    """One directory entry: kind is ``file``, ``dir``, ``link`` or ``other``; times in seconds."""

    name: str
    kind: Literal["file", "dir", "link", "other"]
    size_bytes: int
    mtime_s: float
    mode: int


@dataclass(slots=True, frozen=True)
class Change:
    """A path that differs from the image: ``added``, ``modified`` or ``deleted``."""

    path: str
    kind: Literal["added", "modified", "deleted"]
