"""Choosing tasks of a set: by id, by glob, by metadata."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from hermes_rl.author_code import failure_text
from hermes_rl.config import EnvConfig
from hermes_rl.errors import ConfigError, HermesRLError, TaskError
from hermes_rl.tasks import (
    MalformedTask,
    MalformedTasks,
    Task,
    TaskDescription,
    TaskSet,
    describe,
)

__all__ = ["TaskSelection", "load_selection", "load_wanted", "select"]

_log = logging.getLogger(__name__)


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskSelection:
    """The tasks of a run, in order.

    Attributes:
        name: The task set's name.
        version: Its version, None if it has none.
        tasks: Tasks by id.
    """

    name: str
    version: str | None
    tasks: Mapping[str, Task]

    @property
    def digests(self) -> dict[str, str]:
        """Content digests of the tasks that have one (``metadata["digest"]``)."""
        found = ((name, describe(task).metadata.get("digest")) for name, task in self.tasks.items())
        return {name: str(digest) for name, digest in found if digest}


async def load_selection(task_set: TaskSet, config: EnvConfig) -> TaskSelection:
    """Load a task set and keep what the configuration asks for.

    Raises:
        TaskError: Loading failed, a task is malformed, or two have the same id.
        ConfigError: An entry of ``task_filter`` fits no task.
    """
    chosen = await load_wanted(
        task_set, task_filter=config.task_filter, skip_tasks=config.skip_tasks
    )
    tasks = {task.id: task for task in chosen}
    if len(tasks) != len(chosen):
        twice = sorted(name for name in tasks if sum(t.id == name for t in chosen) > 1)
        raise TaskError(f"Task ids must be unique; {task_set.name} has twice: {', '.join(twice)}.")
    version = getattr(task_set, "version", None)
    return TaskSelection(
        name=task_set.name, version=None if version is None else str(version), tasks=tasks
    )


async def load_wanted(
    task_set: TaskSet,
    *,
    task_filter: Sequence[str] | None = None,
    skip_tasks: Sequence[str] | None = None,
) -> list[Task]:
    """Load a task set and return what :func:`select` chooses. Only that may be malformed.

    Raises:
        TaskError: Loading failed, or chosen tasks are malformed: all their faults.
        ConfigError: An entry of ``task_filter`` fits no task.
    """
    loaded = await _load(task_set)
    chosen = select(loaded, task_filter=task_filter, skip_tasks=skip_tasks)
    malformed = [task for task in chosen if isinstance(task, MalformedTask)]
    if malformed:
        raise MalformedTasks.among(
            [task for task in chosen if not isinstance(task, MalformedTask)], malformed
        )
    left_out = [task.id for task in loaded if isinstance(task, MalformedTask)]
    if left_out:
        _log.warning("Malformed, and left out as asked: %s.", ", ".join(left_out))
    return chosen


async def _load(task_set: TaskSet) -> list[Task]:
    try:
        loaded = task_set.load()
        if not inspect.isawaitable(loaded):
            raise TaskError(f"load() of {task_set.name} must be 'async def'.")
        tasks = await loaded
        if not isinstance(tasks, Iterable):
            kind = type(tasks).__name__
            raise TaskError(f"load() of {task_set.name} must return its tasks, not {kind}.")
        return list(tasks)
    except MalformedTasks as error:
        return [*error.tasks, *error.malformed]
    except HermesRLError:
        raise
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        message = f"load() of {task_set.name} failed: {failure_text(error)}"
        raise TaskError(message) from error


def select(
    tasks: Sequence[Task],
    *,
    task_filter: Sequence[str] | None = None,
    skip_tasks: Sequence[str] | None = None,
) -> list[Task]:
    """Return the tasks that fit any entry of ``task_filter`` and none of ``skip_tasks``.

    An entry is an id, a glob over ids, or ``key=glob`` over a value of the task's metadata (over
    each element where that is a list).

    Raises:
        ConfigError: An entry of ``task_filter`` fits no task: a typo; names the nearest ids.
    """
    described = [(task, describe(task)) for task in tasks]
    for entry in task_filter or ():
        if not any(_fits(description, entry) for _, description in described):
            raise ConfigError(_nothing_fits(entry, [d.id for _, d in described]))
    return [
        task
        for task, description in described
        if task_filter is None or any(_fits(description, entry) for entry in task_filter)
        if not any(_fits(description, entry) for entry in skip_tasks or ())
    ]


def _fits(task: TaskDescription, entry: str) -> bool:
    if fnmatchcase(task.id, entry):
        return True
    key, equals, glob = entry.partition("=")
    if not equals or key not in task.metadata:
        return False
    return any(fnmatchcase(value, glob) for value in _texts(task.metadata[key]))


def _texts(value: Any) -> list[str]:
    return [str(v) for v in value] if isinstance(value, list | tuple) else [str(value)]


def _nothing_fits(entry: str, ids: Sequence[str]) -> str:
    near = difflib.get_close_matches(entry, ids, n=3, cutoff=0.5) or list(ids[:3])
    return (
        f"env.task_filter: {entry!r} fits none of {len(ids)} tasks. "
        f"Give ids such as {', '.join(near)}, globs, or key=glob on metadata."
    )
