"""A daemon that is away for a while, restarted or hung: what wants a sandbox waits for it.

Else the tries of all rollouts would be spent within seconds, and a run of hours be nothing but
errors.
"""

from __future__ import annotations

import logging

import anyio

from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import EngineFailure
from hermes_rl.errors import BackendLost

__all__ = ["Outage"]

logger = logging.getLogger(__name__)

OUTAGE_LIMIT_S = 300.0
"""After this the daemon is taken to stay away."""
ASK_INTERVAL_S = 1.0
ASK_TIMEOUT_S = 10.0


class Outage:
    """Tells whether a daemon is away, and waits for its return."""

    def __init__(self, engine: DockerEngine) -> None:
        self._engine = engine
        self._turn = anyio.Lock()
        self._since_s: float | None = None

    async def waited_out(self) -> bool:
        """Return True once a daemon that was away answers again, False if it answers at once.

        Raises:
            BackendLost: It has been away too long.
        """
        if await self._is_answered():
            return False
        async with self._turn:  # one asks for all
            while not await self._is_answered():
                self._note_silence()
                await anyio.sleep(ASK_INTERVAL_S)
            if self._since_s is not None:
                self._since_s = None
                logger.warning("The Docker daemon answers again.")
        return True

    def _note_silence(self) -> None:
        now_s = anyio.current_time()
        if self._since_s is None:
            self._since_s = now_s
            logger.warning(
                "The Docker daemon does not answer: waiting for it, %g s at most.", OUTAGE_LIMIT_S
            )
        if now_s - self._since_s >= OUTAGE_LIMIT_S:
            raise BackendLost(
                f"The Docker daemon has not answered for {OUTAGE_LIMIT_S:g} s. Start it, and go on "
                "from what is finished.",
                backend="docker",
            )

    async def _is_answered(self) -> bool:
        try:
            await self._engine.json("version", timeout_s=ASK_TIMEOUT_S)
        except EngineFailure:
            return False
        return True
