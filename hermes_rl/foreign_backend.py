"""Using a backend that may be another package's, which may break its contract in any way.

What it raises that is none of ours becomes an error that names it, with the place in its code.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from hermes_rl.author_code import failure_text
from hermes_rl.errors import CreateError, HermesRLError, SandboxError
from hermes_rl.sandbox import Backend, Sandbox, SandboxSpec

__all__ = ["blamed_on", "connected", "create_sandbox"]

_SANDBOX_MEMBERS = ("capabilities", "exec", "read", "write", "close")
"""Without the others some rollouts may do."""


@contextmanager
def blamed_on(
    backend: Backend, doing: str, kind: type[SandboxError] = SandboxError
) -> Iterator[None]:
    """Raise ``kind``, naming the backend, where its code fails in a way that no contract knows.

    Args:
        backend: Whose code the body is.
        doing: Where it broke: ``in create()``.
        kind: What to raise.
    """
    name = getattr(backend, "name", type(backend).__name__)
    try:
        yield
    except HermesRLError:
        raise
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        cause = _single(error)
        if isinstance(cause, HermesRLError):
            raise cause from error
        raise kind(
            f"The backend {name!r} broke {doing}: {failure_text(cause)}.", backend=name
        ) from error


@asynccontextmanager
async def connected(backend: Backend) -> AsyncIterator[Backend]:
    """Enter a backend, and leave it.

    Raises:
        SandboxError: It broke while it was entered or left.
    """
    with blamed_on(backend, "while it connected"):
        await backend.__aenter__()
    try:
        with blamed_on(backend, "when its capabilities were looked at"):
            frozenset(backend.capabilities)
        yield backend
    finally:
        with blamed_on(backend, "while it disconnected"):
            await backend.__aexit__(None, None, None)


async def create_sandbox(backend: Backend, spec: SandboxSpec) -> Sandbox:
    """Start a sandbox; see :meth:`hermes_rl.sandbox.Backend.create`.

    Raises:
        CreateError: Also where the backend broke, or returned something else.
    """
    with blamed_on(backend, "in create()", CreateError):
        sandbox = await backend.create(spec)
    missing = [name for name in _SANDBOX_MEMBERS if not hasattr(sandbox, name)]
    if missing:
        raise CreateError(
            f"The backend {backend.name!r} broke: create() returned a {type(sandbox).__name__}, "
            f"which lacks {', '.join(missing)}.",
            backend=backend.name,
        )
    return sandbox


def _single(error: BaseException) -> BaseException:
    """Return the one exception inside a group: what a task group of the backend was told."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
