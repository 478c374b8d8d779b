"""What all rollouts of one engine share: backend, model, limits, clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import anyio

from hermes_rl.config import AgentFields
from hermes_rl.errors import SandboxGone
from hermes_rl.foreign_backend import blamed_on, create_sandbox
from hermes_rl.legacy.pool import LegacyTools
from hermes_rl.model.protocol import ChatModel
from hermes_rl.sandbox import Backend, Sandbox, SandboxSpec
from hermes_rl.tasks import TaskDescription

__all__ = ["CLOSE_SANDBOX_S", "PerTaskModel", "RolloutSite"]

CLOSE_SANDBOX_S = 15.0
"""``Sandbox.close`` promises 10 s."""
SPARES = 4
"""Sandboxes that reward code has beside its rollout's; they come on top of the running limit,
which their rollouts hold already, and are rare and short."""


@runtime_checkable
class PerTaskModel(Protocol):
    """A model that is made anew for each task: the oracle, which plays the task's solution."""

    def for_task(self, description: TaskDescription) -> ChatModel:
        """Return the model of one task.

        Raises:
            TaskError: It has none for this task.
        """
        ...


@dataclass(slots=True, frozen=True, kw_only=True)
class RolloutSite:
    """See the module.

    Attributes:
        config: Limits and settings.
        backend: Entered; makes the sandboxes.
        model: Open; one that makes a model per task is the oracle.
        running: One token per sandbox that exists or is being made.
        reward_threads: One token per thread that runs blocking reward code.
        clock: Seconds, monotonic.
        retry_delay_s: Wait before the first retry; doubles with each further one.
        artifacts: Where a rollout (task id, attempt) may leave files; None = nowhere.
        spares: One token per further sandbox of a reward.
        legacy: hermes-agent's tools; None = there are none.
    """

    config: AgentFields
    backend: Backend
    model: ChatModel | PerTaskModel
    running: anyio.CapacityLimiter
    reward_threads: anyio.CapacityLimiter
    clock: Callable[[], float]
    retry_delay_s: float = 1.0
    artifacts: Callable[[str, int], Path] | None = None
    spares: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(SPARES))
    legacy: LegacyTools | None = None

    @property
    def plays_solutions(self) -> bool:
        """Whether the agent is the oracle."""
        return isinstance(self.model, PerTaskModel)

    def model_for(self, description: TaskDescription) -> ChatModel:
        """Return the model that plays one task.

        Raises:
            TaskError: It is made from the task, and cannot be made from this one.
        """
        model = self.model
        return model.for_task(description) if isinstance(model, PerTaskModel) else model

    @asynccontextmanager
    async def spare_sandbox(self, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
        """Open a sandbox beside a rollout's own.

        Raises:
            CreateError: See :meth:`hermes_rl.sandbox.Backend.create`.
        """
        holder = object()
        await self.spares.acquire_on_behalf_of(holder)
        try:
            sandbox = await create_sandbox(self.backend, spec)
            try:
                yield sandbox
            finally:
                with (
                    anyio.move_on_after(CLOSE_SANDBOX_S, shield=True),
                    suppress(SandboxGone),
                    blamed_on(self.backend, "while it closed a sandbox"),
                ):
                    await sandbox.close()
        finally:
            self.spares.release_on_behalf_of(holder)

    def token_budget(self, model: ChatModel) -> int | None:
        """Return the tokens of one sequence: as configured, else the model's context."""
        configured: int | None = getattr(self.config, "max_token_length", None)
        return model.context_tokens if configured is None else configured
