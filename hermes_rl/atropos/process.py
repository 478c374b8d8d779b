"""``process``: scored groups into a JSONL file, many at once, without a trainer.

Groups run side by side (``max_num_workers``) and fail alone; each is on disk as soon as it is
finished, in the order of finishing. Running the same command again with ``--resume`` skips the
groups that are there. Beside the file: ``<name>.run.json`` (the settings that affect scores,
checked on resume) and at the end ``<name>.html``, a self-contained page of all groups.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson

from hermes_rl.atropos.base_env import HermesAgentBaseEnv
from hermes_rl.atropos.group_members import GroupFailed
from hermes_rl.atropos.html import write_html
from hermes_rl.atropos.item_task import item_id
from hermes_rl.atropos.jsonl import GroupFile
from hermes_rl.config_layers import score_config
from hermes_rl.errors import (
    ConfigError,
    EngineClosed,
    HermesRLError,
    ResumeMismatch,
    RunLogError,
)
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.runlog.files import RunLock, write_whole
from hermes_rl.types import JSONObject

__all__ = ["ProcessCounters", "Processor"]

_log = logging.getLogger("hermes_rl.atropos")
_files = LoopLimiter(1)


class ProcessCounters:
    """What became of the groups."""

    def __init__(self) -> None:
        self.written = 0
        self.failed = 0
        self.skipped = 0
        """Groups that an earlier run had written."""
        self.filtered = 0
        """Groups that ``postprocess_histories`` or equal scores removed."""


class Processor:
    """Runs ``total_steps`` groups of an environment into one file.

    Attributes:
        counters: What became of the groups so far.
    """

    def __init__(
        self,
        env: HermesAgentBaseEnv,
        path: Path,
        *,
        resume: bool = False,
        on_group: Callable[[ProcessCounters], None] | None = None,
    ) -> None:
        self.counters = ProcessCounters()
        self._env = env
        self._path = path
        self._resume = resume
        self._on_group = on_group
        self._fatal: Exception | None = None
        self._next = 0

    async def run(self) -> None:
        """Run; what finished is on disk however this ends.

        Raises:
            ConfigError: The file is there and ``resume`` was not asked for.
            ResumeMismatch: A setting that affects scores differs from the file's.
            RunLogError: The disk is full or the file cannot be written.
            HermesRLError: What stops every rollout.
        """
        self._check_file()
        lock = self._path.with_suffix(".lock.d")
        rows = self._env.config.jsonl_rows
        with RunLock(lock), await self._open_file(rows) as file:
            self._check_settings()
            try:
                await self._run_groups(file)
                await self._env.log_rest()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(write_html, self._path, limiter=_files)
        if self._fatal is not None:
            raise self._fatal

    async def _open_file(self, rows: str) -> GroupFile:
        """Open the file in a thread: an existing one is read whole."""
        return await anyio.to_thread.run_sync(
            partial(GroupFile, self._path, rows=rows), limiter=_files
        )

    def _check_file(self) -> None:
        if self._path.is_dir():
            raise ConfigError(
                f"{self._path} is a directory: --env.data_path_to_save_groups names a file."
            )
        if self._path.exists() and self._path.stat().st_size and not self._resume:
            raise ConfigError(
                f"{self._path} is there already. Add --resume to go on with it, or name another "
                "file with --env.data_path_to_save_groups."
            )

    def _check_settings(self) -> None:
        path = self._path.with_suffix(".run.json")
        now = orjson.loads(
            orjson.dumps(score_config(self._env.config, self._env.server_configs), default=str)
        )
        if self._resume and path.exists():
            recorded = orjson.loads(path.read_bytes())
            names = sorted(recorded.keys() | now.keys())
            changed = [
                f"{name} ({recorded.get(name)!r} -> {now.get(name)!r})"
                for name in names
                if recorded.get(name) != now.get(name)
            ]
            if changed:
                raise ResumeMismatch(f"{self._path} was made with other settings: {changed}.")
        write_whole(path, [orjson.dumps(now, option=orjson.OPT_INDENT_2)])

    async def _run_groups(self, file: GroupFile) -> None:
        config = self._env.config
        workers = config.max_num_workers
        if workers == -1:
            workers = config.max_num_workers_per_node * len(self._env.server_configs)
        slots = anyio.Semaphore(max(1, workers))
        async with anyio.create_task_group() as groups:
            while self._next < config.total_steps and self._fatal is None:
                item = await self._env.get_next_item()
                if item is None:
                    break
                number = self._next
                self._next += 1
                if number in file.done:
                    self.counters.skipped += 1
                    continue
                await slots.acquire()
                groups.start_soon(self._group, file, slots, number, item, groups.cancel_scope)

    async def _group(
        self,
        file: GroupFile,
        slots: anyio.Semaphore,
        number: int,
        item: Any,
        groups: anyio.CancelScope,
    ) -> None:
        try:
            group, _ = await self._env.collect_trajectories(item)
            with anyio.CancelScope(shield=True):
                await self._write(file, group, number, item)
        except GroupFailed as error:
            self._failed(error)
        except HermesRLError as error:
            if not (error.stops_run or isinstance(error, ConfigError) or not _is_alone(error)):
                self._failed(error)
            else:
                self._fatal = self._fatal or error
                groups.cancel()
        except Exception as error:
            self._failed(error)
        finally:
            slots.release()

    def _failed(self, error: Exception) -> None:
        self.counters.failed += 1
        _log.warning("A group failed: %s: %s", type(error).__name__, error)

    async def _write(self, file: GroupFile, group: Any, number: int, item: Any) -> None:
        kept: list[JSONObject] = []
        for one in group if isinstance(group, list) else [group]:
            processed = await self._env.postprocessed(one) if one else None
            if processed and self._is_kept(processed):
                kept.append(processed)
        if not kept:
            self.counters.filtered += 1
            return
        for one in kept:
            await self._env.note_group(one)
            await file.append(one, number=number, item=item_id(item))
        self.counters.written += 1
        self._env.curr_step += 1
        self._env.items_sent_this_step += len(kept)
        await self._env.log_step()
        if self._on_group is not None:
            self._on_group(self.counters)

    def _is_kept(self, group: JSONObject) -> bool:
        scores = group["scores"]
        is_flat = len(scores) > 1 and len(set(scores)) == 1
        return not (self._env.config.ensure_scores_are_not_same and is_flat)


def _is_alone(error: HermesRLError) -> bool:
    """Say whether an error concerns one group only; a full disk concerns all."""
    return not isinstance(error, RunLogError | EngineClosed)
