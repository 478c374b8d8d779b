"""Removing containers: one by one when their sandbox closes, and what crashes left behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio

from hermes_rl.backends.admission import Admission
from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import EngineFailure
from hermes_rl.backends.ownership import (
    DEADLINE_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    Owner,
    Verdict,
    judge,
)
from hermes_rl.sandbox import SandboxRecord

__all__ = ["IMAGE_LABEL", "Reaper"]

logger = logging.getLogger(__name__)

IMAGE_LABEL = "hermes.image"
"""The image's name: a container is made from its id, which says nothing to people."""
SWEEP_INTERVAL_S = 60.0
REMOVE_TIMEOUT_S = 30.0


def _record(entry: Mapping[str, Any], verdict: Verdict) -> SandboxRecord:
    """Read an entry of the engine's list of containers."""
    labels = entry["Labels"]
    deadline = labels.get(DEADLINE_LABEL, "")
    return SandboxRecord(
        id=entry["Id"][:12],
        image=labels.get(IMAGE_LABEL, entry["Image"]),
        state=entry["State"],
        run=labels.get(RUN_LABEL, ""),
        owner=labels.get(OWNER_LABEL, ""),
        deadline_s=float(deadline) if deadline.isdecimal() else None,
        verdict=verdict,
    )


class Reaper:
    """Removes containers, and remembers those it could not remove."""

    def __init__(
        self,
        engine: DockerEngine,
        admission: Admission,
        owner: Owner,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._admission = admission
        self._owner = owner
        self._now = now
        self._left: set[str] = set()

    async def remove(self, container: str) -> None:
        """Remove a container by id or name; what cannot be removed now is tried again later."""
        self._left.add(container)
        try:
            async with self._admission.removal():
                await self._engine.remove(container, timeout_s=REMOVE_TIMEOUT_S)
        except EngineFailure as failure:
            logger.warning("container %s is not removed yet: %s", container, failure)
        else:
            self._left.discard(container)

    async def records(self) -> list[SandboxRecord]:
        """List the containers of all runs, in every state.

        Raises:
            EngineFailure: The daemon cannot be asked.
        """
        entries = await self._engine.containers(OWNER_LABEL)
        return [_record(entry, self._verdict(entry)) for entry in entries]

    def _verdict(self, entry: Mapping[str, Any]) -> Verdict:
        return judge(entry["Labels"], seen_from=self._owner, now_s=self._now())

    async def sweep(self) -> list[str]:
        """Remove what belongs to dead owners or is past its deadline; return the ids.

        Raises:
            EngineFailure: The daemon cannot be asked.
        """
        doomed = [record.id for record in await self.records() if record.verdict != "keep"]
        await self._remove_all({*doomed, *self._left})
        return [id for id in doomed if id not in self._left]

    async def remove_run(self, run_id: str) -> None:
        """Remove whatever is left of one run, in every state.

        Raises:
            EngineFailure: The daemon cannot be asked.
        """
        entries = await self._engine.containers(f"{RUN_LABEL}={run_id}")
        await self._remove_all([entry["Id"] for entry in entries])

    async def _remove_all(self, containers: Sequence[str] | set[str]) -> None:
        async with anyio.create_task_group() as tasks:
            for container in containers:
                tasks.start_soon(self.remove, container)

    async def run(self) -> None:
        """Sweep every minute until cancelled. A daemon that is away is asked again next time."""
        while True:
            await anyio.sleep(SWEEP_INTERVAL_S)
            try:
                await self.sweep()
            except EngineFailure as failure:
                logger.info("sweeping containers: %s", failure)
