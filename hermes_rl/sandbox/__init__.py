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

from hermes_rl.sandbox.backend import (
    Backend,
    BackendFactory,
    BackendLimits,
    BackendSettings,
    Check,
    Inventory,
    SandboxRecord,
    backend_names,
    open_backend,
)
from hermes_rl.sandbox.protocol import (
    Process,
    Sandbox,
)
from hermes_rl.sandbox.result import (
    DEFAULT_MAX_OUTPUT_BYTES,
    TIMEOUT_EXIT_CODE,
    UNFINISHED_SEARCH,
    Change,
    DirEntry,
    ExecResult,
    ProcessChunk,
)
from hermes_rl.sandbox.spec import (
    Capability,
    HealthCheck,
    Network,
    SandboxSpec,
)

__all__ = [
    "DEFAULT_MAX_OUTPUT_BYTES",
    "TIMEOUT_EXIT_CODE",
    "UNFINISHED_SEARCH",
    "Backend",
    "BackendFactory",
    "BackendLimits",
    "BackendSettings",
    "Capability",
    "Change",
    "Check",
    "DirEntry",
    "ExecResult",
    "HealthCheck",
    "Inventory",
    "Network",
    "Process",
    "ProcessChunk",
    "Sandbox",
    "SandboxRecord",
    "SandboxSpec",
    "backend_names",
    "open_backend",
]
