"""One local sandbox: a keeper process and its directories."""

from __future__ import annotations

import os
from collections.abc import Callable

import anyio
import anyio.to_thread

from hermes_rl.backends.admission import Admission
from hermes_rl.backends.host_room import cannot_start
from hermes_rl.backends.local_directories import SandboxDirectory, remove_tree
from hermes_rl.backends.local_nursery import NurseryClient
from hermes_rl.backends.outpost.channel import Loss
from hermes_rl.backends.outpost.frames import Kind
from hermes_rl.backends.outpost.outpost import EXIT_TAMPERED
from hermes_rl.backends.outpost.sandbox import OutpostSandbox
from hermes_rl.backends.outpost.transport import SocketTransport
from hermes_rl.errors import BackendUnavailable, SandboxError, SandboxGone
from hermes_rl.sandbox import Capability

__all__ = ["LocalSandbox"]

SHUTDOWN_LIMIT_S = 4.0
"""For a keeper to kill its processes and remove its files; then it is killed itself."""
BURIAL_LIMIT_S = 3.0


class LocalSandbox(OutpostSandbox):
    """One keeper process and its directories."""

    def __init__(
        self,
        *,
        id: str,
        nursery: NurseryClient,
        directory: SandboxDirectory,
        admission: Admission,
        transport: SocketTransport,
        capabilities: frozenset[Capability],
        transfers: anyio.Semaphore,
        threads: anyio.CapacityLimiter,
        forget: Callable[[str], object],
        backend: str = "local",
    ) -> None:
        super().__init__(
            id=id,
            backend=backend,
            transport=transport,
            capabilities=capabilities,
            transfers=transfers,
            threads=threads,
        )
        self.directory = directory
        self._nursery = nursery
        self._admission = admission
        self._forget = forget

    async def _remove(self) -> None:
        async with self._admission.removal():
            with anyio.move_on_after(SHUTDOWN_LIMIT_S):
                try:
                    await self._channel.send(Kind.SHUTDOWN, 0)
                    await self._channel.ended.wait()
                except SandboxError:
                    pass  # it has ended already, which is what we want
                await self._nursery.wait_ended(self.id)
            if not self._nursery.has_ended(self.id):
                await self._bury()
            if self._nursery.has_ended(self.id):
                top = self.directory.top
                await anyio.to_thread.run_sync(remove_tree, top, limiter=self._threads)
            # Else its helper is still removing files, more than fit into the time of a close.
        self._forget(self.id)

    async def _bury(self) -> None:
        """End a keeper that does not end itself, e.g. because the agent stopped it."""
        with anyio.move_on_after(BURIAL_LIMIT_S):
            try:
                await self._nursery.kill(self.id)
            except BackendUnavailable:
                return
            await self._nursery.wait_ended(self.id)

    def _did_not_start(self) -> SandboxError | None:
        """What befell the helper, or kept it from starting our keeper."""
        if self._nursery.lost.is_set():
            return self._gone(f"its helper process ended ({self._nursery.complaint()})")
        refusal = self._nursery.refusals.pop(self.id, None)
        if refusal is None:
            return None
        return cannot_start(refusal, backend=self.backend, sandbox_id=self.id)

    async def _explain(self, loss: Loss) -> SandboxError:
        if self._closing or loss.bye == "expired":
            return await super()._explain(loss)
        with anyio.move_on_after(BURIAL_LIMIT_S):
            await self._nursery.wait_ended(self.id)
        return self._did_not_start() or await self._explain_end(loss)

    async def _explain_end(self, loss: Loss) -> SandboxError:
        """Explain the end of a keeper that has started; its status may be known."""
        status = self._nursery.statuses.get(self.id, 0)
        if os.WIFSIGNALED(status) and Capability.ISOLATION in self.capabilities:
            # Nothing inside sees the process that isolates it: this came from the host.
            return self._killed("it was killed from the host", by_agent=False)
        if os.WIFSIGNALED(status):
            return self._broken("something in it killed its supervisor")
        if os.waitstatus_to_exitcode(status) == EXIT_TAMPERED:
            return self._broken("something in it tampered with its supervisor")
        return self._broken(loss.reason) if loss.is_by_agent else self._gone(loss.reason)

    def _broken(self, why: str) -> SandboxGone:
        return self._killed(why, by_agent=True)

    def _killed(self, why: str, *, by_agent: bool) -> SandboxGone:
        return SandboxGone(
            f"Sandbox {self.id} is gone: {why}.",
            cause="killed",
            by_agent=by_agent,
            backend=self.backend,
            sandbox_id=self.id,
        )
