"""One sandbox in a container: the container's process, its outpost and its directories."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from hermes_rl.backends.local_sandbox import LocalSandbox
from hermes_rl.backends.log_tail import log_tail
from hermes_rl.backends.outpost.channel import Loss
from hermes_rl.backends.singularity_errors import last_complaint, singularity_error
from hermes_rl.errors import GoneCause, SandboxError, SandboxGone

__all__ = ["SingularitySandbox"]

COMPLAINT_BYTES = 64 * 1024
KILLED_STATUS = 137
"""What the runtime exits with when SIGKILL ended the container's first process."""


class SingularitySandbox(LocalSandbox):
    """One container.

    Args:
        complaint: File that the runtime's standard error goes to.
        scrub: Removes what is left of its directories because it is another user's.
        is_memory_limited: It has a memory limit.
        options: As of :class:`~hermes_rl.backends.local_sandbox.LocalSandbox`.
    """

    def __init__(
        self,
        *,
        complaint: Path,
        scrub: Callable[[Path], Awaitable[None]],
        is_memory_limited: bool,
        **options: Any,
    ) -> None:
        super().__init__(backend="singularity", **options)
        self._complaint = complaint
        self._scrub = scrub
        self._is_memory_limited = is_memory_limited

    async def send_options(self, data: bytes) -> None:
        """Send what the outpost reads before frames begin.

        Raises:
            SandboxError: The container did not start.
        """
        try:
            await self._transport.send(data)
        except OSError:
            await self._channel.ended.wait()
            self._channel.check()

    async def _remove(self) -> None:
        try:
            await super()._remove()
            await self._scrub(self.directory.top)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(
                    lambda: self._complaint.unlink(missing_ok=True), limiter=self._threads
                )

    async def _explain_end(self, loss: Loss) -> SandboxError:
        printed = await anyio.to_thread.run_sync(self._printed, limiter=self._threads)
        if self._hello is None:
            return singularity_error(printed, otherwise=loss.reason)
        return self._ended(loss, printed)

    def _printed(self) -> bytes:
        try:
            return log_tail(self._complaint, COMPLAINT_BYTES)
        except OSError:
            return b""

    def _ended(self, loss: Loss, printed: bytes) -> SandboxGone:
        status = self._nursery.statuses.get(self.id, 0)
        cause: GoneCause = "unknown"
        why, by_agent = loss.reason, False
        if loss.is_by_agent:
            cause, by_agent = "killed", True
        elif os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == KILLED_STATUS:
            # Process 1 of a process namespace cannot be killed from inside.
            cause = "oom" if self._is_memory_limited else "killed"
            by_agent = self._is_memory_limited
            why = "out of memory" if by_agent else "it was killed from outside"
        elif complaint := last_complaint(printed):
            why = complaint
        return SandboxGone(
            f"Sandbox {self.id} is gone: {why}.",
            cause=cause,
            by_agent=by_agent,
            backend=self.backend,
            sandbox_id=self.id,
        )
