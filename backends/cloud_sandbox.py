"""A sandbox at a vendor: an outpost's, whose stream the vendor's SDK carries.

An outpost that is lost while its sandbox lives is started again, once, as long as no command has
run in the sandbox. Later it is not: the environment, the working directory and the background
processes of the agent went with it, and an agent that goes on without them, unaware, gets a wrong
reward. Such a sandbox is gone and the rollout is tried again from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import anyio

from hermes_rl.backends.cloud_stream import CloudStream
from hermes_rl.backends.cloud_vendor import CloudBox, Fate
from hermes_rl.backends.outpost.answers import Hello
from hermes_rl.backends.outpost.channel import Loss, OutpostChannel
from hermes_rl.backends.outpost.sandbox import OutpostSandbox
from hermes_rl.errors import ChannelLost, GoneCause, SandboxError, SandboxGone
from hermes_rl.sandbox import Capability

__all__ = ["CloudSandbox"]


class CloudSandbox(OutpostSandbox):
    """One sandbox at a vendor.

    Args:
        box: The vendor's end.
        backend: Registered name of the backend.
        remove: Removes it at the vendor; never raises.
        stream: To its outpost, running.
        capabilities: What the backend can do; USERS goes where the outpost is not root.
        deadline_s: Its lease's end on the monotonic clock.
        restart: Starts another outpost in the sandbox; its stream is running.
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
        restart: Callable[[], Awaitable[CloudStream]],
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
        self._restart = restart
        self._restarted: anyio.Event | None = None
        """There from the first loss on; set when its outcome is known."""

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

    async def serve(self) -> None:
        """Read the channel until its end, and once more if the outpost is started again."""
        await super().serve()
        if self._restarted is None:
            return
        try:
            stream = await self._restart()
        except SandboxError as error:
            self._channel.error = await self._lost(Loss(str(error)))
            return
        finally:
            self._restarted.set()
        await self._serve_again(stream)

    async def _serve_again(self, stream: CloudStream) -> None:
        self._transport = stream
        self._channel = OutpostChannel(stream, explain=self._explain)
        if self._closing:
            await stream.aclose()
        await super().serve()

    async def _settle(self) -> None:
        if self._restarted is not None:
            await self._restarted.wait()

    async def _remove(self) -> None:
        await self._remove_box(self.id)

    async def _explain(self, loss: Loss) -> SandboxError:
        """Start the outpost again where that is harmless; else it was the sandbox's end."""
        if self._closing:
            return await super()._explain(loss)
        fate = await self._fate(loss)
        if fate.is_running and self._may_restart(loss):
            self._restarted = anyio.Event()
            return ChannelLost(
                f"The outpost of sandbox {self.id} was lost ({loss.reason}) and is started again.",
                backend=self.backend,
                sandbox_id=self.id,
            )
        return await self._lost(loss, fate)

    def _may_restart(self, loss: Loss) -> bool:
        is_plain = not (loss.is_forged or loss.bye or self._has_run_commands)
        has_begun = self._hello is not None
        return is_plain and has_begun and self._restarted is None

    async def _fate(self, loss: Loss) -> Fate:
        try:
            return await self.box.fate()
        except SandboxError as error:
            return Fate(is_running=False, detail=f"{loss.reason}; and {error}")

    async def _lost(self, loss: Loss, fate: Fate | None = None) -> SandboxGone:
        """Ask the vendor once; whatever is left of it is of no use any more."""
        if fate is None:
            fate = await self._fate(loss)
        if fate.is_running:
            await self._remove_box(self.id)
        return self._ended(loss, fate)

    def _ended(self, loss: Loss, fate: Fate) -> SandboxGone:
        cause: GoneCause = fate.cause
        by_agent = fate.by_agent
        why = fate.detail or loss.reason
        if loss.is_by_agent:
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
