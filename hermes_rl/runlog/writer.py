"""Writing a run directory while the run goes on.

What is promised: when :meth:`RunLog.append` returns, the rollout's transcript and then its record
are on disk (``fsync`` each: a rollout costs minutes and money, a sync milliseconds), and a crash
at any other moment leaves the rollout missing, never half-counted. All writing happens in one
thread at a time, in the order of the calls, off the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

import hermes_rl
from hermes_rl.errors import ResumeMismatch, RunLogError
from hermes_rl.results import RolloutResult
from hermes_rl.runlog.encoding import encode, encode_pretty
from hermes_rl.runlog.exports import metrics_of, samples_of
from hermes_rl.runlog.files import (
    CONFIG,
    METRICS,
    RESULTS,
    SAMPLES,
    AppendFile,
    RunLock,
    remove_run,
    transcript_name,
    write_whole,
)
from hermes_rl.runlog.reader import Key, RecordedRun, read_metrics, read_run
from hermes_rl.runlog.records import record_of, transcript_lines
from hermes_rl.runlog.resume import check_same_run, owed, planned
from hermes_rl.runlog.schema import ResumeRecord, RolloutRecord, RunHeader
from hermes_rl.runlog.scores import Summary, summarise

__all__ = ["RunLog"]

T = TypeVar("T")

WRITER_THREADS = 1
"""One: records stay in order, and a slow disk cannot pile up threads."""


def _utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _without_evidence(record: RolloutRecord) -> RolloutRecord:
    return record.model_copy(update={"evidence": {}})


class RunLog:
    """The run directory of one run, open for writing. An async context manager.

    Attributes:
        directory: Where it is.
        header: The header on disk.
        records: The record that counts for each (task, attempt) so far, without its evidence,
            which is on disk: memory must not grow with what verifiers print.
        owed: What has to be run, in order, as of opening.
    """

    def __init__(
        self,
        directory: Path,
        header: RunHeader,
        config: Mapping[str, Any],
        *,
        resume: bool = False,
        now: Callable[[], str] = _utc_now,
    ) -> None:
        """Describe a run log; entering it opens the files.

        Args:
            directory: Run directory; made if missing.
            header: The run as it is planned now.
            config: What ``config.json`` shall hold; must be free of secrets.
            resume: Continue the run that is there, instead of starting one.
            now: Clock of the time stamps.
        """
        self.directory = directory
        self.header = header
        self.records: dict[Key, RolloutRecord] = {}
        self.owed: list[Key] = planned(header)
        self._config = config
        self._resume = resume
        self._now = now
        self._limiter = CapacityLimiter(WRITER_THREADS)
        self._lock: RunLock | None = None
        self._results: AppendFile | None = None
        self._earlier_wall_s = 0.0

    async def __aenter__(self) -> Self:
        """Take the directory and write the header, or check that the run there is the same.

        Raises:
            RunLogError: The directory is in use, not writable, or holds a run already.
            ResumeMismatch: Something that affects scores differs.
        """
        try:
            await self._in_thread(self._open)
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the files."""
        await self._in_thread(self._close)

    async def append(self, result: RolloutResult) -> RolloutRecord:
        """Write a result; it is safe on disk on return. Not interrupted by cancellation.

        Raises:
            RunLogError: It cannot be written; nothing of its record is left in the file.
        """
        name = transcript_name(result.task_id, result.attempt) if result.agent else None
        record = record_of(result, transcript=name, finished_at=self._now())
        await self._in_thread(lambda: self._write(result, record))
        key = (record.task_id, record.attempt)
        self.records.pop(key, None)
        self.records[key] = _without_evidence(record)
        return record

    async def summarise(self, *, wall_s: float) -> Summary:
        """Return the scores so far and write them to ``metrics.json`` and ``samples.jsonl``.

        Args:
            wall_s: Seconds this process has worked on the run.

        Raises:
            RunLogError: A file cannot be written; the results themselves are safe.
        """
        total_s = self._earlier_wall_s + wall_s

        def write() -> Summary:
            records = [self.records[key] for key in planned(self.header) if key in self.records]
            summary = summarise(records, planned=len(planned(self.header)))
            write_whole(self.directory / SAMPLES, map(encode, samples_of(records)))
            metrics = metrics_of(self.header, summary, wall_s=total_s)
            write_whole(self.directory / METRICS, [encode_pretty(metrics)])
            return summary

        return await self._in_thread(write)

    async def discard(self) -> bool:
        """Remove the run as if it had never begun, unless there is something of it to keep.

        Returns:
            Whether it was removed: False for a run that recorded a rollout or is continued.
        """
        if self._resume or self.records:
            return False
        await self._in_thread(lambda: remove_run(self.directory))
        return True

    async def _in_thread(self, work: Callable[[], T]) -> T:
        with anyio.CancelScope(shield=True):
            value = await to_thread.run_sync(work, limiter=self._limiter)
        return value

    def _open(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunLogError(
                f"Run directory {self.directory} cannot be made: {error.strerror or error}."
            ) from error
        self._lock = RunLock(self.directory)
        if self._resume:
            self._continue(read_run(self.directory))
        else:
            self._begin()
        write_whole(self.directory / CONFIG, [encode_pretty(self._config)])

    def _begin(self) -> None:
        results = self.directory / RESULTS
        if results.exists() and results.stat().st_size:
            raise RunLogError(
                f"{self.directory} already holds a run. Continue it with --resume "
                f"{self.directory}, or choose another run directory."
            )
        # Whole or not at all: there is never a run without its header.
        write_whole(results, [encode(self.header.model_dump())])
        self._results = AppendFile(results)

    def _continue(self, run: RecordedRun) -> None:
        if run.header.schema_version != self.header.schema_version:
            raise ResumeMismatch(
                f"{self.directory} was written in format {run.header.schema_version}, this "
                f"version writes {self.header.schema_version}: start a new run."
            )
        check_same_run(run.header, self.header)
        self.header, self.owed = run.header, owed(run)
        self.records = {key: _without_evidence(record) for key, record in run.records.items()}
        metrics = read_metrics(self.directory) or {}
        self._earlier_wall_s = float(metrics.get("hermes_rl", {}).get("wall_s", 0.0))
        self._results = AppendFile(self.directory / RESULTS)
        note = ResumeRecord(resumed_at=self._now(), engine_version=hermes_rl.__version__)
        self._results.append(encode(note.model_dump()))

    def _write(self, result: RolloutResult, record: RolloutRecord) -> None:
        if self._results is None:
            raise RunLogError(f"{self.directory} is not open: use 'async with'.")
        if record.transcript is not None:
            write_whole(self.directory / record.transcript, transcript_lines(result))
        self._results.append(encode(record.model_dump()))

    def _close(self) -> None:
        results, lock = self._results, self._lock
        self._results = self._lock = None
        if results is not None:
            results.close()
        if lock is not None:
            lock.release()
