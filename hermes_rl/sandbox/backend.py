"""What makes sandboxes: the protocol, its settings, and lookup by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from hermes_rl.cache_directory import cache_directory
from hermes_rl.errors import UnknownName
from hermes_rl.plugins import make_plugin
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import Capability, Network, SandboxSpec

__all__ = [
    "Backend",
    "BackendFactory",
    "BackendLimits",
    "BackendSettings",
    "Check",
    "Inventory",
    "SandboxRecord",
    "backend_names",
    "open_backend",
]


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
