"""A sandbox at a vendor: an outpost's, whose stream the vendor's SDK carries."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.cloud_vendor import CloudBox, Fate
from hermes_rl.backends.outpost.channel import Hello, Loss
from hermes_rl.backends.outpost.sandbox import OutpostSandbox
from hermes_rl.errors import GoneCause, SandboxError, SandboxGone
from hermes_rl.sandbox import Capability

__all__ = ["CloudSandbox"]


class CloudSandbox(OutpostSandbox):
    """One sandbox at a vendor.

    Args:
        box: The vendor's end.
        backend: Registered name of the backend.
        remove: Removes it at the vendor; never raises.
        stream: To its outpost.
        capabilities: What the backend can do; USERS goes where the outpost is not root.
        deadline_s: Its lease's end on the monotonic clock.
        transfers: Limits uploads and downloads.
        threads: For local files.
    """

    def __init__(
        self,
        *,
        box: CloudBox,
        backend: str,
        remove: Callable[[str], Awaitable[None]],
        stream: CloudStream,
        capabilities: frozenset[Capability],
        deadline_s: float,
        transfers: anyio.Semaphore,
        threads: anyio.CapacityLimiter,
    ) -> None:
        super().__init__(
            id=box.id,
            backend=backend,
            transport=stream,
            capabilities=capabilities,
            transfers=transfers,
            threads=threads,
        )
        self.box = box
        self._remove_box = remove
        self._deadline_s = deadline_s

    @property
    def is_closing(self) -> bool:
        """Whether ``close`` has begun."""
        return self._closing

    @property
    def is_lost(self) -> bool:
        """Whether its outpost's stream has ended."""
        return self._channel.ended.is_set()

    def greeted(self) -> Hello | None:
        """Return what the outpost said of itself; None before it did."""
        return self._hello

    async def _remove(self) -> None:
        await self._remove_box(self.id)

    async def _explain(self, loss: Loss) -> SandboxError:
        """Ask the vendor once; whatever is left of it is of no use any more."""
        if self._closing:
            return await super()._explain(loss)
        try:
            fate = await self.box.fate()
        except SandboxError as error:
            fate = Fate(is_running=False, detail=f"{loss.reason}; and {error}")
        if fate.is_running:
            await self._remove_box(self.id)
        return self._ended(loss, fate)

    def _ended(self, loss: Loss, fate: Fate) -> SandboxGone:
        cause: GoneCause = fate.cause
        by_agent = fate.by_agent
        why = fate.detail or loss.reason
        # Frames that neither end would send were written by something inside.
        if loss.is_forged or loss.bye == "garbage":
            cause, by_agent, why = "killed", True, loss.reason
        elif loss.bye == "expired" or time.monotonic() >= self._deadline_s:
            cause, by_agent, why = "expired", False, "its lease is over"
        return SandboxGone(
            f"Sandbox {self.id} is gone: {why}.",
            cause=cause,
            by_agent=by_agent,
            backend=self.backend,
            sandbox_id=self.id,
        )
