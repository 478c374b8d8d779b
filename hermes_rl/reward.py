"""Running a task's reward code.

Coroutine functions run on the loop, with an awaitable context. Plain functions, and any reward
code that says ``sync_reward``, run in a thread with a context that blocks. A call of the context
that was never awaited makes the reward an error that names the line: what looks like a score must
not come from work that was never done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import anyio

from hermes_rl.author_code import exits_as
from hermes_rl.context import ToolContext, run_sync_reward
from hermes_rl.errors import RewardError
from hermes_rl.tasks import TaskDescription, normalise_reward
from hermes_rl.types import AgentResult, Reward

__all__ = ["RewardCode", "score"]

RewardCode = Callable[[AgentResult, Any], Any]
"""``task.reward``: returns a number or :class:`~hermes_rl.types.Reward`, or a coroutine of one."""


def blocks(reward: RewardCode) -> bool:
    """Say whether ``reward`` is a plain function; wrappers are seen through."""
    original = inspect.unwrap(reward)
    call = getattr(original, "__call__", None)  # noqa: B004 - the method itself is looked at
    return not (inspect.iscoroutinefunction(original) or inspect.iscoroutinefunction(call))


async def score(
    reward: RewardCode,
    result: AgentResult,
    context: ToolContext,
    *,
    task: TaskDescription,
    sync_reward: bool,
    threads: anyio.CapacityLimiter,
) -> Reward:
    """Return the reward of one rollout.

    Args:
        reward: The task's reward code.
        result: What the agent did.
        context: Access to the sandbox.
        task: The task.
        sync_reward: The code blocks although it may be a coroutine function.
        threads: Limits the threads that blocking code runs in.

    Raises:
        RewardError: A call of the context was never awaited, or the code called ``sys.exit``.
        TaskError: The reward is no finite number.
        Exception: Whatever the code raises.
    """
    with exits_as(RewardError, "reward"):
        if sync_reward or task.sync_reward or blocks(reward):
            value = await run_sync_reward(partial(reward, result), context, limiter=threads)
        else:
            value = await reward(result, context)
            pending = context.pending()
            if pending:
                raise RewardError("; ".join(pending))
    return normalise_reward(cast("float | Reward", value), task.id)
