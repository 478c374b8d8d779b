"""Every exception this library raises on purpose, in one tree.

::

    HermesRLError
    ├── ConfigError               bad configuration; names the field and the fix
    │   ├── UnknownName           no such backend, parser, tool ...; lists the nearest names
    │   ├── MissingExtra          an optional dependency is not installed; names the extra
    │   └── NotSetUp              nothing says where or as whom a backend is used; names what would
    ├── TaskError                 a task or task set cannot be used as written
    ├── ModelError                talking to a language model failed
    │   ├── ModelRateLimited      HTTP 429 after every retry                     retryable
    │   ├── ModelTransient        5xx, connection, timeout after every retry     retryable
    │   ├── ModelRejected         HTTP 400: the request itself is wrong
    │   ├── ModelUnauthorized     HTTP 401, 402, 403                             stops the run
    │   ├── ModelNotFound         HTTP 404                                       stops the run
    │   └── ModelProtocolError    an answer that is not a completion             retryable
    ├── SandboxError              an environment could not do its work
    │   ├── CreateError
    │   │   ├── ImageNotFound
    │   │   ├── ImageBuildFailed  carries the end of the build output
    │   │   ├── Capacity                                                         retryable
    │   │   └── RateLimited       carries ``retry_after_s``                      retryable
    │   ├── SandboxGone           carries ``cause`` and ``by_agent``             retryable*
    │   ├── ChannelLost           the outpost's stream broke, the sandbox lives  retryable
    │   ├── FileError
    │   │   ├── SandboxFileNotFound
    │   │   ├── SandboxIsADirectory
    │   │   ├── SandboxPermissionDenied
    │   │   └── SandboxFileTooLarge
    │   ├── UnsafeArchive         a transfer held a link, device, ``..`` or too much data
    │   ├── Unsupported           the backend lacks a capability; names it
    │   └── BackendUnavailable    daemon, service or binary not reachable        retryable
    │       └── BackendLost       for longer than a run waits                    stops the run
    ├── ToolFault                 a tool broke by our fault, not by the model's
    │   └── ParserFault           a tool-call parser raised or answered with nonsense; names it
    ├── RewardError               scoring failed; the rollout is errored, never a silent zero
    │   ├── RewardUnreadable      the verifier left no reward, or nothing that is one
    │   ├── VerifierBootstrapFailed  the verifier could not set itself up, in a fresh sandbox either
    │   └── VerifierTimeout       the verifier did not end in its time
    ├── EngineClosed              the engine was closed while the work was wanted
    └── RunLogError               the run directory cannot be read or written
        └── ResumeMismatch        a field that affects scores differs from the recorded run

(* unless the agent itself broke it.)

Two attributes tell callers what to do: ``retryable`` (the same work may succeed on a fresh
attempt) and ``stops_run`` (no other rollout can succeed either, e.g. a wrong API key). Every
exception is picklable: positional ``args`` hold the message, keyword attributes have defaults.
Limits that end a rollout are not errors; see :class:`hermes_rl.types.StopReason`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar, Literal

__all__ = [
    "BackendLost",
    "BackendUnavailable",
    "Capacity",
    "ChannelLost",
    "ConfigError",
    "CreateError",
    "EngineClosed",
    "FileError",
    "GoneCause",
    "HermesRLError",
    "ImageBuildFailed",
    "ImageNotFound",
    "MissingExtra",
    "ModelError",
    "ModelNotFound",
    "ModelProtocolError",
    "ModelRateLimited",
    "ModelRejected",
    "ModelTransient",
    "ModelUnauthorized",
    "NotSetUp",
    "ParserFault",
    "RateLimited",
    "ResumeMismatch",
    "RewardError",
    "RewardUnreadable",
    "RunLogError",
    "SandboxError",
    "SandboxFileNotFound",
    "SandboxFileTooLarge",
    "SandboxGone",
    "SandboxIsADirectory",
    "SandboxPermissionDenied",
    "TaskError",
    "ToolFault",
    "UnknownName",
    "UnsafeArchive",
    "Unsupported",
    "VerifierBootstrapFailed",
    "VerifierTimeout",
]

GoneCause = Literal["oom", "disk", "expired", "removed", "killed", "unknown"]
"""Why a sandbox ended: out of memory, disk full, lease over, removed by someone, PID 1 killed."""


class HermesRLError(Exception):
    """Root of all errors of this library."""

    retryable: bool = False
    """The same work may succeed on a fresh attempt."""
    stops_run: ClassVar[bool] = False
    """No other rollout of this run can succeed either."""


class ConfigError(HermesRLError):
    """The configuration is wrong; the message names the field and the fix."""


class UnknownName(ConfigError):
    """A name (backend, parser, toolset, task set ...) that is not registered."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> UnknownName:
        """Build the error for ``name``, with the nearest known names first.

        Args:
            kind: What the name names, in words a user knows ("backend", "parser").
            name: The unknown name as given.
            known: All names that would have been accepted.
        """
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        return cls(f"Unknown {kind} {name!r}.{hint} Known: {', '.join(names) or 'none'}.")


class MissingExtra(ConfigError):
    """An optional dependency is not installed."""

    @classmethod
    def of(cls, what: str, extra: str) -> MissingExtra:
        """Build the error that names the extra to install."""
        return cls(
            f"{what} needs an optional package. Install it: pip install 'hermes_rl[{extra}]'"
        )


class NotSetUp(ConfigError):
    """Nothing says where or as whom a backend is used; the message names what would."""


class TaskError(HermesRLError):
    """A task or task set cannot be used as written."""


class ModelError(HermesRLError):
    """Talking to a language model failed.

    Attributes:
        status: HTTP status, if there was an answer.
        retry_after_s: How long the server asked to wait, if it did.
    """

    def __init__(
        self, message: str, *, status: int | None = None, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class ModelRateLimited(ModelError):
    """The server kept answering 429 until the retry budget was spent."""

    retryable = True


class ModelTransient(ModelError):
    """5xx, connection failure or timeout until the retry budget was spent."""

    retryable = True


class ModelProtocolError(ModelError):
    """The server answered 200 with something that is no completion, until retries were spent."""

    retryable = True


class ModelRejected(ModelError):
    """The server says that the request itself is wrong (400, 422)."""


class ModelUnauthorized(ModelError):
    """401, 402 or 403: the key is missing, wrong, out of credit or not allowed this model."""

    stops_run = True


class ModelNotFound(ModelError):
    """404: no such model or endpoint."""

    stops_run = True


class SandboxError(HermesRLError):
    """An environment could not do its work.

    Attributes:
        backend: Registered name of the backend, if known.
        sandbox_id: The sandbox's id, if there was one.
    """

    def __init__(
        self, message: str, *, backend: str | None = None, sandbox_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.backend = backend
        self.sandbox_id = sandbox_id


class CreateError(SandboxError):
    """A sandbox could not be started."""


class ImageNotFound(CreateError):
    """The image exists neither locally nor in the registry, or may not be pulled."""


class ImageBuildFailed(CreateError):
    """Building an image from a Dockerfile directory failed; ``output`` holds its last lines."""

    def __init__(
        self,
        message: str,
        *,
        output: str = "",
        backend: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, sandbox_id=sandbox_id)
        self.output = output


class Capacity(CreateError):
    """No room for another sandbox at the moment."""

    retryable = True


class RateLimited(CreateError):
    """The vendor refuses more creations for ``retry_after_s`` seconds (None = it did not say)."""

    retryable = True

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        backend: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, sandbox_id=sandbox_id)
        self.retry_after_s = retry_after_s


class SandboxGone(SandboxError):
    """The sandbox ended while it was in use.

    Attributes:
        cause: See :data:`GoneCause`.
        by_agent: The agent itself broke it (out of memory, killed PID 1 ...): a graded failure
            of the agent, not of the infrastructure.
    """

    def __init__(
        self,
        message: str,
        *,
        cause: GoneCause = "unknown",
        by_agent: bool = False,
        backend: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, sandbox_id=sandbox_id)
        self.cause: GoneCause = cause
        self.by_agent = by_agent
        self.retryable = not by_agent


class ChannelLost(SandboxError):
    """The stream to the outpost broke although the sandbox lives (exec-style transports only)."""

    retryable = True


class FileError(SandboxError):
    """A file operation inside the sandbox failed.

    Attributes:
        path: The path inside the sandbox.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        backend: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, sandbox_id=sandbox_id)
        self.path = path


class SandboxFileNotFound(FileError):
    """No such file or directory in the sandbox."""


class SandboxIsADirectory(FileError):
    """A file was wanted, the path is a directory (or a directory was wanted and it is a file)."""


class SandboxPermissionDenied(FileError):
    """The sandbox's kernel refused the operation (permissions, read-only file system)."""


class SandboxFileTooLarge(FileError):
    """The file is larger than the caller's limit."""


class UnsafeArchive(SandboxError):
    """A transferred archive held something that may not leave the sandbox."""


class Unsupported(SandboxError):
    """The backend lacks a capability that the call needs.

    Attributes:
        capability: The missing :class:`hermes_rl.sandbox.Capability`.
    """

    def __init__(
        self,
        message: str,
        *,
        capability: str = "",
        backend: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, backend=backend, sandbox_id=sandbox_id)
        self.capability = capability


class BackendUnavailable(SandboxError):
    """The daemon, service or binary behind a backend cannot be reached."""

    retryable = True


class BackendLost(BackendUnavailable):
    """What is behind the backend went away in the middle of a run and has not come back."""

    stops_run = True


class ToolFault(HermesRLError):
    """A tool broke by our fault; the model's mistakes are tool results instead."""


class ParserFault(ToolFault):
    """A tool-call parser broke its contract: whether the model called a tool is not known."""


class RewardError(HermesRLError):
    """Scoring failed; the rollout is errored."""


class RewardUnreadable(RewardError):
    """The verifier left no reward file, or one that holds no reward."""


class VerifierBootstrapFailed(RewardError):
    """The verifier could not set itself up (a package source was down, say): no score at all."""


class VerifierTimeout(RewardError):
    """The verifier did not end within its own time limit."""


class EngineClosed(HermesRLError):
    """The engine was closed before or while this work ran, or was never entered."""


class RunLogError(HermesRLError):
    """The run directory cannot be read or written."""


class ResumeMismatch(RunLogError):
    """A field that affects scores differs from the recorded run; names the fields."""
