"""``terminal-bench-2``: the tasks of Terminal-Bench 2.0.

They come from the data set on the hub, from another data set with its columns
(``--env.dataset_name owner/name``, with ``@revision`` if it must not change), from a directory of
task folders or one such folder (``--env.dataset_name DIRECTORY``). Only folders hold solutions for
``--oracle``.

Limits are each task's own. ``--env.task_timeout`` and ``--env.test_timeout`` cap them, which makes
scores incomparable: two in five tasks need more than half an hour for agent and tests together.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import anyio
import anyio.to_thread

from hermes_rl.benchmarks.task_directory import holds_tasks, load_tasks
from hermes_rl.benchmarks.task_rows import COLUMNS, RowDefaults, tasks_of_rows
from hermes_rl.benchmarks.terminal_task import TerminalTask
from hermes_rl.config import EnvConfig
from hermes_rl.envs.dataset import examine_data_set, load_rows, require_columns
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.sandbox import Check
from hermes_rl.tasks import MalformedTasks

__all__ = ["TerminalBench2"]

_NO_KVM = "it boots a virtual machine, which needs KVM."
_loading = LoopLimiter(1)
"""Unpacking a hundred archives is disk work; more threads would not make it faster."""


class TerminalBench2:
    """The task set.

    Args:
        dataset_name: Hub data set, local file or directory; None = the published data set.
        dataset_split: Its split; None = ``train``, which holds everything.
        force_build: Build images from Dockerfiles although tasks name prebuilt ones.
    """

    name = "terminal-bench-2"
    edition: ClassVar[str] = "2.0"
    dataset: ClassVar[str] = "NousResearch/terminal-bench-2"
    row_defaults: ClassVar[RowDefaults] = RowDefaults(agent_s=1800.0, test_s=1800.0)
    """For rows without limits; no task of the published set needs less than 360 s for its tests."""
    not_on: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "qemu-startup": {"modal": _NO_KVM},
        "qemu-alpine-ssh": {"modal": _NO_KVM},
        "crack-7z-hash": {
            "modal": "it searches for a password, longer than a sandbox there lives."
        },
    }
    """By task and backend: why it cannot run there."""
    agent_defaults: ClassVar[Mapping[str, Any]] = {
        "enabled_toolsets": ["terminal", "file"],
        "max_agent_turns": 60,
        "max_token_length": 32000,
        "agent_temperature": 0.8,
        "terminal_timeout": 300,
    }
    """Settings that published scores are made with."""

    def __init__(
        self,
        dataset_name: str | None = None,
        dataset_split: str | None = None,
        force_build: bool = False,
    ) -> None:
        self._source = dataset_name or self.dataset
        self._split = dataset_split or "train"
        self._force_build = force_build
        self._version: str | None = None

    @classmethod
    def config_init(cls) -> EnvConfig:
        """Return the benchmark's settings."""
        return EnvConfig(**cls.defaults())

    @classmethod
    def defaults(cls) -> dict[str, Any]:
        """Return :attr:`agent_defaults` and the backend: Modal, unless TERMINAL_ENV names one."""
        return {**cls.agent_defaults, "terminal_backend": os.environ.get("TERMINAL_ENV") or "modal"}

    @property
    def version(self) -> str | None:
        """Edition and a digest of all loaded tasks; None before :meth:`load`."""
        return self._version

    async def doctor(self) -> Sequence[Check]:
        """Check what loading the tasks needs; changes nothing."""
        return [examine_data_set(self._source)]

    async def load(self) -> Sequence[TerminalTask]:
        """Load the tasks, off the event loop.

        Raises:
            MalformedTasks: Some are malformed, or their archives are not safe: all faults.
            TaskError: The data set cannot be loaded, or lacks a column.
            MissingExtra: The package ``datasets`` is needed and not installed.
        """
        try:
            return self._finished(await self._all_tasks())
        except MalformedTasks as error:
            usable = self._finished(cast(Sequence[TerminalTask], error.tasks))
            raise MalformedTasks.among(usable, error.malformed) from None

    def _finished(self, tasks: Sequence[TerminalTask]) -> list[TerminalTask]:
        self._version = f"{self.edition}-{_digest(tasks)}"
        return [self._placed(task) for task in tasks]

    async def _all_tasks(self) -> list[TerminalTask]:
        path = Path(self._source)
        if await anyio.to_thread.run_sync(holds_tasks, path, limiter=_loading):
            return await anyio.to_thread.run_sync(
                lambda: load_tasks(path, force_build=self._force_build), limiter=_loading
            )
        return await self._of_rows()

    async def _of_rows(self) -> list[TerminalTask]:
        rows = await load_rows(self._source, split=self._split)
        require_columns(rows, COLUMNS, self._source)
        return await anyio.to_thread.run_sync(
            lambda: tasks_of_rows(rows, defaults=self.row_defaults, force_build=self._force_build),
            limiter=_loading,
        )

    def _placed(self, task: TerminalTask) -> TerminalTask:
        """Return the task with the backends that it cannot run on."""
        not_on = self.not_on.get(task.id, {})
        return replace(task, sandbox=replace(task.sandbox, not_on=not_on)) if not_on else task


def _digest(tasks: Sequence[TerminalTask]) -> str:
    lines = sorted(f"{task.id}\0{task.metadata['digest']}" for task in tasks)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
