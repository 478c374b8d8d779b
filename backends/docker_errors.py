"""What the container engine answers when something fails, and the error we raise for it.

:data:`TABLE` is read from the top; the first row whose phase, status and text match wins. The
texts are those of dockerd 20.10 to 28 and of runc.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    CreateError,
    HermesRLError,
    ImageNotFound,
    RateLimited,
    SandboxError,
    SandboxFileNotFound,
    SandboxGone,
    SandboxPermissionDenied,
)

__all__ = [
    "TABLE",
    "TIMED_OUT",
    "UNREACHABLE",
    "EngineFailure",
    "Phase",
    "Row",
    "sandbox_error",
    "translated",
]

Phase = Literal["connect", "image", "create", "use", "file"]
"""What was being done: reaching the daemon, pulling, starting a sandbox, using it, its files."""

UNREACHABLE = 900
"""Status of a failure to talk to the daemon at all."""
TIMED_OUT = 901
"""Status of a call that the daemon did not answer in time."""


class EngineFailure(Exception):
    """The engine refused or failed a call.

    Attributes:
        status: HTTP status; 0 for a failure reported inside a stream that began well.
        message: The engine's own words.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message

    def __str__(self) -> str:
        return f"{self.message} [{self.status}]" if 0 < self.status < UNREACHABLE else self.message


Make = Callable[[str], HermesRLError]


@dataclass(slots=True, frozen=True)
class Row:
    """One row: ``None`` matches anything; ``text`` is searched for, case ignored."""

    phases: frozenset[Phase] | None
    statuses: frozenset[int] | None
    text: str | None
    make: Make

    def matches(self, phase: Phase, failure: EngineFailure) -> bool:
        """Tell whether this row speaks of the failure."""
        return (
            (self.phases is None or phase in self.phases)
            and (self.statuses is None or failure.status in self.statuses)
            and (self.text is None or re.search(self.text, failure.message, re.I) is not None)
        )


def _row(
    make: Make, *phases: Phase, status: int | tuple[int, ...] | None = None, text: str | None = None
) -> Row:
    statuses = (status,) if isinstance(status, int) else status
    return Row(
        frozenset(phases) or None, None if statuses is None else frozenset(statuses), text, make
    )


def _unavailable(message: str) -> HermesRLError:
    return BackendUnavailable(
        f"The Docker daemon does not answer ({message}). Start it, or point DOCKER_HOST at one."
    )


def _no_descriptors(message: str) -> HermesRLError:
    return Capacity(
        f"No more files can be opened here ({message}). Raise the limit (ulimit -n), or lower "
        "--env.max_running_sandboxes."
    )


def _forbidden(message: str) -> HermesRLError:
    return BackendUnavailable(
        f"No permission to use the Docker daemon ({message}). Add yourself to the group docker."
    )


def _no_image(message: str) -> HermesRLError:
    return ImageNotFound(f"The image is not there and cannot be pulled: {message}")


def _rate_limited(message: str) -> HermesRLError:
    return RateLimited(
        f"The registry refuses more pulls for now: {message}. Log in to it, or wait."
    )


def _registry_unreachable(message: str) -> HermesRLError:
    return BackendUnavailable(
        f"An image is not here and its registry cannot be reached: {message}. Check its name and "
        "the network, or bring it with docker load."
    )


def _disk_full(message: str) -> HermesRLError:
    return Capacity(f"The daemon's disk is full: {message}. Free some: docker system df")


def _no_addresses(message: str) -> HermesRLError:
    return Capacity(f"Docker's network has no room for another sandbox: {message}")


def _no_room(message: str) -> HermesRLError:
    return Capacity(f"The host has no room for another sandbox: {message}")


def _no_network(message: str) -> HermesRLError:
    return ConfigError(f"Docker lacks the network that sandboxes should use: {message}")


def _cannot_start(message: str) -> HermesRLError:
    return CreateError(f"The sandbox does not start: {message}")


def _gone(message: str) -> HermesRLError:
    return SandboxGone(f"The sandbox is gone: {message}", cause="removed")


def _no_file(message: str) -> HermesRLError:
    return SandboxFileNotFound(message)


def _read_only(message: str) -> HermesRLError:
    return SandboxPermissionDenied(message)


def _other(message: str) -> HermesRLError:
    return SandboxError(f"The Docker daemon failed: {message}")


TABLE: tuple[Row, ...] = (
    _row(_forbidden, status=UNREACHABLE, text="permission denied"),
    _row(_no_descriptors, status=UNREACHABLE, text="too many open files"),
    _row(_unavailable, status=(UNREACHABLE, TIMED_OUT)),
    _row(_disk_full, text="no space left on device"),
    _row(_rate_limited, "image", text="toomanyrequests|rate limit"),
    _row(
        _no_image,
        "image",
        text="no such image|not found|does not exist|manifest unknown|denied|unauthorized"
        "|invalid reference|no matching manifest",
    ),
    _row(_registry_unreachable, "image", status=(0, 500, 502, 503, 504)),
    _row(_no_image, "image", "create", text="no such image|invalid reference format"),
    _row(_no_network, "create", text="network .* not found"),
    _row(_no_addresses, "create", text="no available .*address|exchange full|address pool"),
    _row(
        _no_room,
        "create",
        text="cannot allocate memory|resource temporarily unavailable|too many open files",
    ),
    _row(_gone, "create", "use", status=404, text="no such container"),
    _row(_cannot_start, "create"),
    _row(_gone, "use", status=409, text="is not running|removal of container|dead or marked"),
    _row(_gone, "file", status=404, text="no such container"),
    _row(_no_file, "file", status=404),
    _row(_gone, "file", status=409, text="removal of container|dead or marked"),
    _row(_read_only, "file", text="read-only"),
    _row(_other),
)


def sandbox_error(
    failure: EngineFailure, phase: Phase, *, sandbox_id: str | None = None, path: str = ""
) -> HermesRLError:
    """Return the error that callers see for an engine's failure."""
    row = next(row for row in TABLE if row.matches(phase, failure))
    error = row.make(str(failure))
    if isinstance(error, SandboxError):
        error.backend = "docker"
        error.sandbox_id = sandbox_id
    if path and isinstance(error, SandboxFileNotFound | SandboxPermissionDenied):
        error.path = path
    return error


@contextmanager
def translated(phase: Phase, *, sandbox_id: str | None = None, path: str = "") -> Iterator[None]:
    """Raise the callers' error for every :class:`EngineFailure` of the block."""
    try:
        yield
    except EngineFailure as failure:
        raise sandbox_error(failure, phase, sandbox_id=sandbox_id, path=path) from failure
