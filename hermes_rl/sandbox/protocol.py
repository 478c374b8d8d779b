"""A running sandbox as everyone sees it, and a command in progress."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from hermes_rl.sandbox.result import (
    DEFAULT_MAX_OUTPUT_BYTES,
    Change,
    DirEntry,
    ExecResult,
    ProcessChunk,
)
from hermes_rl.sandbox.spec import Capability

__all__ = ["Process", "Sandbox"]


class Process(Protocol):
    """A command in progress, from :meth:`Sandbox.stream`.

    Iterating yields :class:`ProcessChunk`; a reader that stops reading blocks the command, never
    our memory. With ``tail_bytes`` set the output is kept as a rolling tail instead, the command
    never blocks, and iteration is not available.
    """

    pid: int
    """Process id inside the sandbox."""

    @property
    def result(self) -> ExecResult | None:
        """The result once the process has ended, else None. Never waits."""
        ...

    @property
    def tail(self) -> bytes:
        """The last ``tail_bytes`` bytes of (merged) output so far."""
        ...

    @property
    def total_bytes(self) -> int:
        """Bytes of output so far."""
        ...

    def __aiter__(self) -> AsyncIterator[ProcessChunk]:
        """Yield output in order until the pipes close or the process has ended."""
        ...

    async def write(self, data: bytes) -> None:
        """Write to standard input; waits while the process does not read."""
        ...

    async def write_eof(self) -> None:
        """Close standard input."""
        ...

    async def kill(self, *, grace_s: float = 0.0) -> ExecResult:
        """Kill the command's process tree; with a grace, SIGTERM first. Returns the result."""
        ...

    async def wait(self) -> ExecResult:
        """Wait until the process itself has ended (background children may live on)."""
        ...


class Sandbox(Protocol):
    """One running environment.

    All methods raise :class:`~hermes_rl.errors.SandboxGone` once the environment has ended.
    """

    id: str
    capabilities: frozenset[Capability]

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        timeout_s: float,
        session: str | None = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        merge_stderr: bool = False,
        trusted: bool = False,
    ) -> ExecResult:
        """Run a command to its end.

        Args:
            cmd: Text for the image's bash (else sh), or an argument vector run without a shell.
            timeout_s: Deadline in seconds; the tree is killed and the result has ``timed_out``.
            session: Named shell session; None = stateless.
            cwd: Working directory of this call only.
            env: Extra environment of this call only.
            user: User of this call; needs USERS.
            stdin: Bytes for standard input; None = an immediate end of file.
            max_output_bytes: Kept per stream, head 40 % and tail 60 %.
            merge_stderr: One stream in the order written.
            trusted: Run around everything inside the sandbox; needs ENGINE_ACCESS.

        Raises:
            SandboxGone: The sandbox ended.
            Unsupported: A needed capability is missing.
        """
        ...

    def stream(
        self,
        cmd: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        session: str | None = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        merge_stderr: bool = False,
        pty: bool = False,
        tail_bytes: int | None = None,
    ) -> AbstractAsyncContextManager[Process]:
        """Start a command and talk to it. Leaving the context kills what still runs.

        The command starts from the session's current state and does not hold the session: other
        commands of it run meanwhile, and its own state changes are not kept. The context holds
        no cancel scope, so it may be left from another task than the one that entered it.
        """
        ...

    async def read(
        self,
        path: str,
        *,
        max_bytes: int,
        offset: int = 0,
        trusted: bool = False,
        user: str | None = None,
    ) -> bytes:
        """Read a file with the rights of ``user`` (needs USERS; None = the sandbox's).

        Relative paths start at the agent session's working directory.

        Raises:
            FileError: Not found, a directory, not permitted, or more than ``max_bytes``.
        """
        ...

    async def write(
        self, path: str, data: bytes, *, mode: int | None = None, user: str | None = None
    ) -> None:
        """Write a file atomically as ``user``, creating parent directories.

        An existing file keeps its mode and owner, a link is followed; a new one gets ``mode`` or
        0666 less the umask.
        """
        ...

    async def list(self, path: str, *, user: str | None = None) -> list[DirEntry]:
        """List a directory as ``user``, sorted by name, at most 10,000 entries."""
        ...

    async def upload(self, local: Path, remote: str, *, user: str | None = None) -> None:
        """Copy a local file or directory (its contents) to ``remote``; bounded memory.

        What is made belongs to ``user`` (needs USERS; None = the sandbox's).
        """
        ...

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, user: str | None = None
    ) -> None:
        """Copy a file or directory out of a hostile sandbox, with the rights of ``user``.

        Nothing lands outside ``local``, no link is followed, no device made.

        Raises:
            UnsafeArchive: The data held something that may not leave, or too much of it.
        """
        ...

    async def kill_all(self) -> None:
        """Kill every process in the sandbox but our own supervisor."""
        ...

    def pause(self) -> AbstractAsyncContextManager[None]:
        """Freeze all processes while the context is open (at most 5 s); needs PAUSE."""
        ...

    async def ping(self, *, timeout_s: float = 5.0) -> float:
        """Return the round trip in seconds."""
        ...

    async def changes(self, *, suspects: str = "") -> Sequence[Change]:
        """List what differs from the image; needs CHANGES.

        Engines compare sizes and times, which a program can put back.

        Args:
            suspects: Regular expression. What it matches from the start of its path is listed
                also if only the time of its last change of status shows that it was written
                since the sandbox was made. Then the image's own content is listed, too, where a
                program has linked, renamed or touched it. A search that was stopped, took too
                long or found too much is the change :data:`~hermes_rl.sandbox.UNFINISHED_SEARCH`.
        """
        ...

    async def close(self) -> None:
        """Remove the sandbox and all its processes. Idempotent; "already gone" is success."""
        ...
