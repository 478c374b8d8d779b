"""What all rollouts of one engine share: backend, model, limits, clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import anyio

from hermes_rl.config import AgentFields
from hermes_rl.model.protocol import ChatModel
from hermes_rl.sandbox import Backend
from hermes_rl.tasks import TaskDescription

__all__ = ["PerTaskModel", "RolloutSite"]


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
    """

    config: AgentFields
    backend: Backend
    model: ChatModel | PerTaskModel
    running: anyio.CapacityLimiter
    reward_threads: anyio.CapacityLimiter
    clock: Callable[[], float]
    retry_delay_s: float = 1.0

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

    def token_budget(self, model: ChatModel) -> int | None:
        """Return the tokens of one sequence: as configured, else the model's context."""
        configured: int | None = getattr(self.config, "max_token_length", None)
        return model.context_tokens if configured is None else configured
