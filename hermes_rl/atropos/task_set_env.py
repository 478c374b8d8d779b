"""Any task set as an environment: every benchmark can be trained on."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from hermes_rl.atropos.base_env import HermesAgentBaseEnv
from hermes_rl.errors import TaskError
from hermes_rl.runlog.scores import Summary
from hermes_rl.task_selection import load_wanted
from hermes_rl.tasks import Task, TaskSet

__all__ = ["TaskSetEnv", "environment_from"]


class TaskSetEnv(HermesAgentBaseEnv):
    """An environment whose items are the tasks of a set.

    ``serve`` goes through the tasks again and again, in a new seeded order each time; ``process``
    does so up to ``total_steps``. Tasks whose metadata say ``split`` other than ``train`` are
    kept for the evaluation; without such a split, evaluation and training share all tasks.
    """

    make_task_set: Callable[[HermesAgentBaseEnv], TaskSet]
    version: str | None = None
    """The loaded tasks' version, recorded with every score."""

    async def setup(self) -> None:
        """Load the tasks."""
        task_set = type(self).make_task_set(self)
        self.tasks = await load_wanted(
            task_set,
            task_filter=self.config.task_filter,
            skip_tasks=self.config.skip_tasks,
        )
        self.version = getattr(task_set, "version", None)
        if not self.tasks:
            raise TaskError(f"{self.name} has no task left after task_filter and skip_tasks.")
        self.train_tasks = [task for task in self.tasks if _split(task) in (None, "train")]
        self.eval_tasks = [task for task in self.tasks if _split(task) not in (None, "train")]
        if not self.train_tasks:
            self.train_tasks = self.tasks
        self._order: list[Task] = []
        self._epoch = 0

    async def get_next_item(self) -> Task:
        """Return the next training task; never ends."""
        if not self._order:
            self._order = list(self.train_tasks)
            random.Random(f"{self.config.seed}/{self._epoch}").shuffle(self._order)
            self._epoch += 1
        return self._order.pop()

    def task_of(self, item: Any) -> Task:
        """Return the item: it is a task."""
        task: Task = item
        return task

    async def evaluate(self, *args: Any, **kwargs: Any) -> Summary:
        """Evaluate the tasks kept for it, else all."""
        return await self.evaluate_items(self.eval_tasks or self.tasks)


def _split(task: Task) -> str | None:
    split = (getattr(task, "metadata", None) or {}).get("split")
    return None if split is None else str(split)


def environment_from(
    make_task_set: Callable[[HermesAgentBaseEnv], TaskSet], *, name: str
) -> type[TaskSetEnv]:
    """Return an environment class over a task set.

    Args:
        make_task_set: Makes the task set, given the environment (its ``config`` is resolved).
        name: Name of the environment.
    """
    return type(
        "TaskSetEnv", (TaskSetEnv,), {"name": name, "make_task_set": staticmethod(make_task_set)}
    )
