"""What a cloud must offer for sandboxes to run on it: the seam between vendors and the session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from anyio.abc import TaskGroup

from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.outpost.start import OutpostStart
from hermes_rl.backends.shipment import Shipment
from hermes_rl.errors import GoneCause
from hermes_rl.sandbox import SandboxSpec

__all__ = [
    "BOX_LABEL",
    "IDLE_COMMAND",
    "BoxRecord",
    "CloudBox",
    "CloudImage",
    "CloudVendor",
    "Fate",
    "Order",
]

BOX_LABEL = "hermes.box"
"""One value per creation: finds a sandbox whose handle never reached us."""
IDLE_COMMAND = (
    "/bin/sh",
    "-c",
    "p=/tmp/.idle.$$; mkfifo $p 2>/dev/null && exec 3<>$p && rm -f $p"
    " && while :; do read -r x <&3 || sleep 3600; done; while :; do sleep 3600; done",
)
"""Keeps a sandbox up. It waits without a child: tests look for a ``sleep`` that the agent left, and
agents end what they find by that name. Without quotes of either kind."""


@dataclass(slots=True, frozen=True)
class Fate:
    """Whether a sandbox lives, and if not, why.

    Attributes:
        is_running: The vendor says that it runs.
        cause: Why it ended, or why its outpost did while it runs.
        detail: What the vendor said, as the end of a sentence.
        by_agent: What ran inside did it.
    """

    is_running: bool
    cause: GoneCause = "unknown"
    detail: str = ""
    by_agent: bool = False


@dataclass(slots=True, frozen=True)
class BoxRecord:
    """One sandbox as the vendor lists it."""

    id: str
    labels: Mapping[str, str]
    state: str = "running"
    image: str = ""


@dataclass(slots=True, frozen=True)
class CloudImage:
    """What a sandbox is made from.

    Attributes:
        name: For people; no two images have the same.
        value: The vendor's own object.
    """

    name: str
    value: Any


@dataclass(slots=True, frozen=True, kw_only=True)
class Order:
    """One creation.

    Attributes:
        name: Unique, at most 40 letters, digits and dashes; in the labels too.
        spec: What is wanted.
        image: From :meth:`CloudVendor.image_for`.
        labels: Owner, run, deadline and name.
        blocks_network: No network at all.
    """

    name: str
    spec: SandboxSpec
    image: CloudImage
    labels: Mapping[str, str]
    blocks_network: bool


class CloudBox(Protocol):
    """A sandbox at the vendor."""

    id: str

    async def start_outpost(self, start: OutpostStart | Shipment) -> CloudStream:
        """Start what will be the outpost and return its stream, not yet running.

        Raises:
            PythonMissing: There is no python3 to start it with, or no shell.
            TerminalMissing: Nothing there lets a shipment through the terminal.
            CreateError: It does not start; says why.
        """
        ...

    async def fate(self) -> Fate:
        """Ask the vendor whether it lives; also whether its outpost does."""
        ...

    async def touch(self) -> None:
        """Tell the vendor that it is in use."""
        ...


class CloudVendor(Protocol):
    """One cloud. Every method raises our errors only, and has a deadline of its own."""

    name: str
    python_hint: str
    """What helps an image that can neither run an outpost nor take our interpreter."""

    async def open(self, tasks: TaskGroup) -> None:
        """Connect.

        Raises:
            ConfigError: A token is missing.
            BackendUnavailable: The vendor cannot be reached.
        """
        ...

    async def close(self) -> None:
        """Disconnect."""
        ...

    def check(self, spec: SandboxSpec) -> None:
        """Refuse what this cloud can never run.

        Raises:
            Unsupported: Names what and why.
        """
        ...

    async def image_for(self, spec: SandboxSpec) -> CloudImage:
        """Return the image, built if need be."""
        ...

    async def create(self, order: Order) -> CloudBox:
        """Create a sandbox and wait until commands can run in it."""
        ...

    def find(self, labels: Mapping[str, str]) -> AsyncIterator[BoxRecord]:
        """List the sandboxes that carry all these labels, in every state but gone."""
        ...

    async def delete(self, id: str) -> None:
        """Remove a sandbox; one that is gone already is no error."""
        ...

    async def leftovers(self, known: Sequence[str]) -> Sequence[BoxRecord]:
        """List the sandboxes of all runs with their labels, without the ``known`` ones."""
        ...
