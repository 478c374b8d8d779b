"""One sandbox on a host: a guard there and the outpost below it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio

from hermes_rl.backends.admission import Admission
from hermes_rl.backends.outpost.answers import Hello
from hermes_rl.backends.outpost.channel import Loss
from hermes_rl.backends.outpost.frames import Kind
from hermes_rl.backends.outpost.guard import EXIT_KILLED, EXIT_OVERDUE
from hermes_rl.backends.outpost.sandbox import OutpostSandbox
from hermes_rl.backends.ssh_host import SSHHost
from hermes_rl.backends.ssh_stream import SSHStream
from hermes_rl.errors import ChannelLost, ConfigError, SandboxError, SandboxGone
from hermes_rl.sandbox import Capability

__all__ = ["SSHSandbox"]

SHUTDOWN_LIMIT_S = 4.0
"""For outpost and guard to kill the processes and remove the files; then others do it."""
BURIAL_LIMIT_S = 4.0
STATUS_LIMIT_S = 2.0
"""From a stream's end to the exit status of what was behind it."""


class SSHSandbox(OutpostSandbox):
    """One sandbox on a host.

    Args:
        id: Its id, and the name of its directory.
        host: Where it is.
        top: Its directory there.
        stream: To its outpost.
        capabilities: What it can do; BASH is added when the outpost reports it.
        transfers: Limits uploads and downloads.
        threads: For local files.
        admission: Limits removals.
        forget: Called with its id when it is gone.
    """

    def __init__(
        self,
        *,
        id: str,
        host: SSHHost,
        top: str,
        stream: SSHStream,
        capabilities: frozenset[Capability],
        transfers: anyio.Semaphore,
        threads: anyio.CapacityLimiter,
        admission: Admission,
        forget: Callable[[str], object],
    ) -> None:
        super().__init__(
            id=id,
            backend="ssh",
            transport=stream,
            capabilities=capabilities,
            transfers=transfers,
            threads=threads,
        )
        self.host = host
        self.top = top
        self.wire = stream
        self._admission = admission
        self._forget = forget

    def greeted(self) -> Hello | None:
        """Return what the outpost said of itself; None before it did."""
        return self._hello

    async def _remove(self) -> None:
        try:
            async with self._admission.removal():
                await self._end()
        finally:
            self._forget(self.id)

    async def _end(self) -> None:
        with anyio.move_on_after(SHUTDOWN_LIMIT_S):
            with suppress(SandboxError):  # it has ended already, which is what we want
                await self._channel.send(Kind.SHUTDOWN, 0)
            await self.wire.closed.wait()
        if self.wire.exit_status is None:
            await self._bury()

    async def _bury(self) -> None:
        """End a sandbox whose guard did not, e.g. because the agent stopped it."""
        with anyio.move_on_after(BURIAL_LIMIT_S):
            try:
                await self.host.remove(self.top)
            except (SandboxError, ConfigError):
                return  # out of reach: it ends with its stream there, or a sweep finds it

    async def _explain(self, loss: Loss) -> SandboxError:
        if self._closing:
            return await super()._explain(loss)
        with anyio.move_on_after(STATUS_LIMIT_S):
            await self.wire.closed.wait()
        wire = self.wire
        if loss.bye == "expired" or wire.exit_status == EXIT_OVERDUE:
            return self._ended("its lease is over", expired=True)
        if loss.is_by_agent:
            return self._ended(loss.reason, by_agent=True)
        if wire.lost or (wire.exit_status is None and not wire.exit_signal):
            return ChannelLost(
                f"The connection to {self.host.address} was lost, and with it sandbox {self.id}: "
                f"{wire.lost or loss.reason}.",
                backend=self.backend,
                sandbox_id=self.id,
            )
        if wire.exit_status == EXIT_KILLED or wire.exit_signal:
            is_isolated = Capability.ISOLATION in self.capabilities
            return self._ended("its supervisor was killed", by_agent=not is_isolated)
        return self._gone(loss.reason)

    def _ended(self, why: str, *, by_agent: bool = False, expired: bool = False) -> SandboxGone:
        return SandboxGone(
            f"Sandbox {self.id} is gone: {why}.",
            cause="expired" if expired else "killed",
            by_agent=by_agent,
            backend=self.backend,
            sandbox_id=self.id,
        )
