"""Sandboxes: where an agent's commands run. Protocols, plain data, and lookup by name.

A :class:`Backend` creates :class:`Sandbox` objects from a :class:`SandboxSpec`. Backends are
found by name through the entry-point group ``hermes_rl.backends``; the core imports none of them.

Rules every implementation keeps (checked by ``hermes_rl.testing.sandbox_conformance``):

* A non-zero exit or a timeout is a result, never an exception; a command never runs twice.
* Commands of one session run in order and share state (environment, working directory,
  functions, aliases); ``session=None`` is stateless and parallel.
* When a deadline passes or the caller is cancelled, the command's whole process tree inside the
  sandbox dies within 250 ms; what it had printed is kept.
* ``close()`` is idempotent, shielded from cancellation and takes at most 10 s.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from hermes_rl.cache_directory import cache_directory
from hermes_rl.errors import UnknownName
from hermes_rl.plugins import make_plugin

__all__ = [
    "DEFAULT_MAX_OUTPUT_BYTES",
    "UNFINISHED_SEARCH",
    "Backend",
    "BackendLimits",
    "BackendSettings",
    "Capability",
    "Change",
    "Check",
    "DirEntry",
    "ExecResult",
    "HealthCheck",
    "Inventory",
    "Process",
    "ProcessChunk",
    "Sandbox",
    "SandboxRecord",
    "SandboxSpec",
    "backend_names",
    "open_backend",
]

DEFAULT_MAX_OUTPUT_BYTES = 256 * 1024
"""Output bytes kept per stream of one command (head 40 %, tail 60 %); the rest is counted."""
TIMEOUT_EXIT_CODE = 124
"""Exit code of a command that met its deadline, as ``timeout(1)`` has it."""

UNFINISHED_SEARCH = "(search for rewritten files)"
"""Path of the change that stands for all that ``Sandbox.changes()`` could not find out because
something in the sandbox kept it from it. No real path is like it: they begin with a slash."""

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
        build_timeout_s: Wall clock for pull or build.
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


@dataclass(slots=True, frozen=True)
class Check:
    """One line of ``hermes_rl doctor``. ``fix`` says what to do when ``ok`` is False.

    ``optional``: what is not ok was never set up, which is a fault only for those who want it: an
    extra, a program, an account. ``doctor`` without names does not count it.
    """

    name: str
    ok: bool
    detail: str = ""
    fix: str = ""
    optional: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class SandboxRecord:
    """One environment of any run, as ``hermes_rl sandboxes list`` shows it.

    Attributes:
        id: Its id.
        image: What it was made from.
        state: In the backend's words (created, running, paused ...).
        run: Id of the run that made it.
        owner: The process that owns it.
        deadline_s: Unix time after which it may go; None if it has none.
        verdict: What a sweep from here would do with it, and why.
    """

    id: str
    image: str
    state: str
    run: str
    owner: str
    deadline_s: float | None
    verdict: Literal["keep", "owner dead", "expired"]


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
                long or found too much is the change :data:`UNFINISHED_SEARCH`.
        """
        ...

    async def close(self) -> None:
        """Remove the sandbox and all its processes. Idempotent; "already gone" is success."""
        ...


@dataclass(slots=True, frozen=True, kw_only=True)
class BackendLimits:
    """How many operations a backend runs at once; None = no limit of its own."""

    starting: int | None = None
    removing: int | None = None
    transfers: int | None = 4
    running: int | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class BackendSettings:
    """What a backend is opened with.

    Attributes:
        run_id: Labels every resource of this run; unique per engine.
        cache_dir: Where the backend may keep what is reusable between runs.
        max_starting: Overrides :attr:`BackendLimits.starting`.
        network: Default network of sandboxes whose spec does not say.
        options: Backend-specific options, validated by the backend.
    """

    run_id: str
    cache_dir: Path = field(default_factory=cache_directory)
    max_starting: int | None = None
    network: Network | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Backend(Protocol):
    """Creates sandboxes. An async context manager: entering connects, leaving removes the rest.

    The backend owns its limits on starting, removing and transfers (removals first); how many
    sandboxes run at once is the engine's business.
    """

    name: str
    capabilities: frozenset[Capability]
    limits: BackendLimits

    async def __aenter__(self) -> Self:
        """Connect.

        Raises:
            BackendUnavailable: What is behind the backend cannot be reached; says how to fix it.
        """
        ...

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close every sandbox of this run that is still there, then disconnect."""
        ...

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Start a sandbox. Cancelling removes whatever was already made.

        Raises:
            CreateError: See its subclasses.
            Unsupported: The spec needs a capability that is missing.
        """
        ...

    async def sweep(self) -> Sequence[str]:
        """Remove what dead owners or passed deadlines left behind; return the ids removed."""
        ...

    async def doctor(self) -> Sequence[Check]:
        """Check the prerequisites without changing anything."""
        ...


@runtime_checkable
class Inventory(Protocol):
    """A backend that can name what all runs have on it; needs no entering, changes nothing."""

    async def records(self) -> Sequence[SandboxRecord]:
        """List the environments of all runs.

        Raises:
            BackendUnavailable: What is behind the backend cannot be reached.
        """
        ...


class BackendFactory(Protocol):
    """What an entry point of the group ``hermes_rl.backends`` names."""

    def __call__(self, settings: BackendSettings) -> Backend:
        """Return an unconnected backend; imports nothing heavy before it is entered."""
        ...


_BACKEND_MEMBERS = ("name", "create", "sweep", "doctor", "__aenter__", "__aexit__")
"""That are there before it is entered."""


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="hermes_rl.backends")}


def backend_names() -> list[str]:
    """Names of all installed backends, sorted."""
    return sorted(_registered())


def open_backend(name: str, settings: BackendSettings) -> Backend:
    """Return the backend registered as ``name``; enter it with ``async with``.

    Raises:
        UnknownName: No such backend; lists the nearest.
        ConfigError: Two installed packages claim the name, it cannot be loaded, or it is none.
    """
    points = _registered()
    if name not in points:
        raise UnknownName.of("terminal backend", name, points)
    backend: Backend = make_plugin(points[name], "Backend", settings, members=_BACKEND_MEMBERS)
    return backend
