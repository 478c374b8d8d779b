"""Why a container ended: its exit code, the kernel's out-of-memory killer, or someone's order.

Containers remove themselves when they end, so looking afterwards may be too late. One stream of
the engine's events per run records what happens to each; :meth:`FateWatch.ending` combines it with
one look at the container.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import anyio

from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import EngineFailure
from hermes_rl.backends.outpost.outpost import EXIT_TAMPERED
from hermes_rl.errors import SandboxGone

__all__ = ["Fate", "FateWatch", "gone"]

RECONNECT_S = 1.0
"""Pause before the event stream is opened again, when the daemon has closed it."""
ENDING_WAIT_S = 2.0
"""A container whose stream has closed is reported dead by the daemon well within this time."""


@dataclass(slots=True)
class Fate:
    """What is known of a container's end.

    Attributes:
        ended: Set when its exit code is known.
        exit_code: 128+N for signal N; None = not known.
        out_of_memory: A process in it was killed for lack of memory.
        killed_by_order: Someone told the daemon to kill it.
        removed: The daemon does not know it any more.
    """

    ended: anyio.Event = field(default_factory=anyio.Event)
    exit_code: int | None = None
    out_of_memory: bool = False
    killed_by_order: bool = False
    removed: bool = False


class FateWatch:
    """Records the fates of all containers that carry one label."""

    def __init__(self, engine: DockerEngine, label: str) -> None:
        self._engine = engine
        self._label = label
        self._fates: dict[str, Fate] = {}

    async def watch(self) -> None:
        """Follow the engine's events until cancelled."""
        while True:
            try:
                async with aclosing(self._engine.events(self._label)) as events:
                    async for event in events:
                        self._record(event)
            except EngineFailure:
                pass  # a daemon that is away says so to whoever asks it for something
            await anyio.sleep(RECONNECT_S)

    def _record(self, event: Mapping[str, Any]) -> None:
        actor = event.get("Actor") or {}
        fate = self._fates.get(actor.get("ID", ""))
        if fate is None:
            return
        action = event.get("Action")
        if action == "oom":
            fate.out_of_memory = True
        elif action == "kill":
            fate.killed_by_order = True
        elif action == "die":
            fate.exit_code = int(actor["Attributes"]["exitCode"])
            fate.ended.set()

    def track(self, container: str) -> None:
        """Begin to record what happens to a container; call it before it starts."""
        self._fates[container] = Fate()

    def forget(self, container: str) -> None:
        """Drop what is recorded of a container that is closed."""
        self._fates.pop(container, None)

    async def ending(self, container: str) -> Fate:
        """Return the fate of a container whose stream has ended.

        Waits at most :data:`ENDING_WAIT_S`.

        Raises:
            EngineFailure: The daemon cannot be asked.
        """
        fate = self._fates.get(container) or Fate()
        try:
            state = (await self._engine.inspect(container))["State"]
        except EngineFailure as failure:
            if failure.status != 404:
                raise
            fate.removed = True
        else:
            fate.out_of_memory = fate.out_of_memory or bool(state["OOMKilled"])
            if not state["Running"]:
                fate.exit_code = state["ExitCode"]
                fate.ended.set()
        with anyio.move_on_after(ENDING_WAIT_S):
            await fate.ended.wait()
        return fate


def gone(fate: Fate, *, sandbox_id: str, expired: bool) -> SandboxGone:
    """Return the error for a sandbox that ended by itself.

    Args:
        fate: What is known.
        sandbox_id: For the error.
        expired: Its supervisor said that the lease is over, or the deadline has passed.
    """
    number = None if fate.exit_code is None else fate.exit_code - 128
    name = signal.Signals(number).name if number in set(signal.Signals) else ""
    if expired:
        error = SandboxGone("The sandbox ended: its lease is over.", cause="expired")
    elif fate.killed_by_order:
        error = SandboxGone("The sandbox was removed by someone else.", cause="removed")
    elif fate.out_of_memory and number in (None, signal.SIGKILL):
        error = SandboxGone(
            "The sandbox ended: its processes used more memory than its limit.",
            cause="oom",
            by_agent=True,
        )
    elif number == signal.SIGKILL:
        # Nothing inside can send SIGKILL to its PID 1: this came from the host.
        error = SandboxGone("The sandbox was killed from the host.", cause="killed")
    elif name or fate.exit_code == EXIT_TAMPERED:
        how = f"killed from inside ({name})" if name else "tampered with"
        error = SandboxGone(
            f"The sandbox ended: its supervisor was {how}.",
            cause="killed",
            by_agent=True,
        )
    else:
        code = "unknown" if fate.exit_code is None else fate.exit_code
        error = SandboxGone(f"The sandbox ended unexpectedly (exit code {code}).")
    error.backend = "docker"
    error.sandbox_id = sandbox_id
    return error
