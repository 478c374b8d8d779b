"""The oracle: plays each task's own solution, which shows that the task can be solved.

The solution is one ``terminal`` call, made by way of the agent loop and the tools like any
model's. Whoever runs the rollout uploads ``Solution.files`` and sets the call's time limit.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from hermes_rl.config import ServerConfig
from hermes_rl.errors import TaskError
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.protocol import ModelSession, Sampling
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.model.wire import ReasoningInHistory
from hermes_rl.tasks import Solution, TaskDescription
from hermes_rl.types import JSONObject, ToolCallParser

__all__ = ["OracleModel", "open_oracle"]


class OracleModel:
    """Makes one scripted model per task. It cannot speak without a task."""

    name = "oracle"
    context_tokens: int | None = None

    def for_task(self, description: TaskDescription) -> ScriptedModel:
        """Return the model that runs the task's solution, then says that it is done.

        Raises:
            TaskError: The task has no solution.
        """
        if description.solution is None:
            raise TaskError(
                f"Task {description.id!r} has no solution for the oracle: give it a 'solution', "
                "or leave it out with --env.skip_tasks."
            )
        turn = call("terminal", {"command": _command(description.solution)})
        return ScriptedModel(replay([turn]), name=self.name)

    def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AbstractAsyncContextManager[ModelSession]:
        """Refuse: only :meth:`for_task` knows what to do.

        Raises:
            TaskError: Always.
        """
        raise TaskError(
            "The oracle plays the solution of a task; a rollout without a task has none."
        )


def _command(solution: Solution) -> str:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in solution.env.items()]
    return "\n".join([*exports, solution.command])


@asynccontextmanager
async def open_oracle(
    config: ServerConfig,
    *,
    parser: ToolCallParser | None = None,
    limiter: AdaptiveLimiter | None = None,
    reasoning_in_history: ReasoningInHistory = "auto",
) -> AsyncIterator[OracleModel]:
    """Open the oracle; the arguments are those of every opener and play no part."""
    yield OracleModel()
