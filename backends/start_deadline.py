"""The time that a sandbox has to come up, and what becomes of one that does not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from hermes_rl.errors import CreateError
from hermes_rl.sandbox import Sandbox, SandboxSpec

__all__ = ["coming_up", "too_slow"]


def too_slow(spec: SandboxSpec, *, backend: str) -> CreateError:
    """Return the error of a sandbox that was not up in time."""
    return CreateError(
        f"The sandbox was not up and healthy within {spec.start_timeout_s:g} s.", backend=backend
    )


@asynccontextmanager
async def coming_up(
    sandbox: Sandbox, spec: SandboxSpec, *, backend: str, deadline_s: float
) -> AsyncIterator[None]:
    """Close the sandbox unless the block ends well, and by the deadline of the event loop's clock.

    Raises:
        CreateError: It was not up in time.
    """
    try:
        with anyio.fail_after(deadline_s - anyio.current_time()):
            yield
    except BaseException as error:
        await sandbox.close()
        if isinstance(error, TimeoutError):
            raise too_slow(spec, backend=backend) from None
        raise
