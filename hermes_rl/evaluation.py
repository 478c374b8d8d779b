"""Evaluate: tasks x attempts on an engine, recorded as they finish, scored at the end.

Rollouts run side by side and fail alone; only an error that no other rollout could get past
(a refused API key, a full disk) stops the run. Whatever ends it, what finished is on disk, and
what was cut short has left no record.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.evaluation_plan import plan_evaluation, run_header
from hermes_rl.runlog.resume import planned
from hermes_rl.runlog.schema import RolloutRecord
from hermes_rl.runlog.scores import Summary
from hermes_rl.runlog.writer import RunLog
from hermes_rl.stream import RolloutStream
from hermes_rl.task_selection import TaskSelection, load_selection
from hermes_rl.tasks import TaskSet

__all__ = ["Evaluation", "OnProgress", "Progress", "evaluate", "run_header"]


@dataclass(slots=True, frozen=True, kw_only=True)
class Progress:
    """A moment of a run. Counts include what earlier processes of a resumed run did.

    Attributes:
        planned: Rollouts in all.
        done: Rollouts with a record that stands.
        passed: Of these, passes.
        errored: Of these, errors.
        running: Rollouts in flight, waiting for a sandbox included.
        mean_reward: Over what is done, errors as 0; None before the first.
        elapsed_s: Seconds since this process began.
        eta_s: Seconds still needed at the pace so far; None before the first end.
        tokens_per_s: Sampled tokens per second of this process.
        waiting_share: Share of the rollouts' time spent waiting for permits and retries.
    """

    planned: int
    done: int = 0
    passed: int = 0
    errored: int = 0
    running: int = 0
    mean_reward: float | None = None
    elapsed_s: float = 0.0
    eta_s: float | None = None
    tokens_per_s: float = 0.0
    waiting_share: float = 0.0


OnProgress = Callable[[Progress], None]
"""Called on the event loop; must return at once."""


class Evaluation:
    """One run of an evaluation over an open run log. ``run`` once.

    Attributes:
        summary: The scores, set however the run ended; None until then.
    """

    def __init__(
        self,
        selection: TaskSelection,
        engine: RolloutEngine,
        log: RunLog,
        *,
        workers: int,
        on_progress: OnProgress | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare.

        Args:
            selection: The tasks; must hold every task that the log owes.
            engine: Entered; runs the rollouts.
            log: Entered; says what is owed.
            workers: Rollouts at once.
            on_progress: Hears of the start and of every rollout's end.
            clock: Seconds, monotonic.
        """
        self.summary: Summary | None = None
        self._selection = selection
        self._engine = engine
        self._log = log
        self._workers = workers
        self._on_progress = on_progress
        self._clock = clock
        self._started_at = clock()
        self._fatal: HermesRLError | None = None
        owed = set(log.owed)
        standing = [record for key, record in log.records.items() if key not in owed]
        self._tally = _Tally(len(owed), standing)

    async def run(self) -> Summary:
        """Run what is owed and return the scores of the whole run.

        On cancellation no more work is taken, rollouts in flight are torn down and leave no
        record, what had finished is written with its scores, and the cancellation goes on.

        Raises:
            ConfigError: The configuration does not work; if no rollout was recorded, the run
                directory is removed again.
            HermesRLError: What stopped the run; the scores of what finished are written.
        """
        self._started_at = self._clock()
        self._report()
        try:
            if self._log.owed:
                await self._run_owed()
        finally:
            await self._write_summary()
        if self._fatal is not None:
            raise self._fatal
        assert self.summary is not None  # _write_summary sets one or the other
        return self.summary

    async def _run_owed(self) -> None:
        header = self._log.header
        async with self._engine.run(
            [self._selection.tasks[task_id] for task_id in header.task_ids],
            attempts=header.attempts,
            max_workers=self._workers,
            skip=set(planned(header)) - set(self._log.owed),
        ) as results:
            try:
                await self._collect(results)
            finally:
                results.stop()
                # A rollout may have finished while the run was being stopped: it counts.
                with anyio.CancelScope(shield=True):
                    await self._collect(results)

    async def _collect(self, results: RolloutStream) -> None:
        """Record results until the stream ends; an error that ends the run is kept."""
        try:
            async for result in results:
                if result.status != "cancelled":
                    self._tally.add(await self._log.append(result))
                    self._report()
        except HermesRLError as error:
            self._fatal = self._fatal or error

    async def _write_summary(self) -> None:
        """Write the scores; a failure here never hides what stopped the run before.

        A configuration that no rollout could start with has no scores, and mending it would make
        another run: nothing is left that would have to be removed or could not be resumed.
        """
        try:
            if isinstance(self._fatal, ConfigError) and await self._log.discard():
                return
            wall_s = self._clock() - self._started_at
            self.summary = await self._log.summarise(wall_s=wall_s)
        except HermesRLError as error:
            self._fatal = self._fatal or error

    def _report(self) -> None:
        if self._on_progress is not None:
            elapsed_s = self._clock() - self._started_at
            self._on_progress(self._tally.progress(self._workers, elapsed_s))


class _Tally:
    """Running sums, so that a progress report costs the same however long the run is."""

    def __init__(self, owed: int, standing: Collection[RolloutRecord]) -> None:
        """Start from the records of earlier processes that stand."""
        self._owed = owed
        self._planned = owed + len(standing)
        self._counts: Counter[str] = Counter()
        self._new: Counter[str] = Counter()
        self._reward = 0.0
        for record in standing:
            self._count(record)

    def add(self, record: RolloutRecord) -> None:
        """Count a rollout of this process."""
        self._count(record)
        waiting = record.timings.get("waiting", 0.0)
        busy = record.timings.get("model", 0.0) + record.timings.get("tool", 0.0)
        self._new["rollouts"] += 1
        self._new["tokens"] += int(record.usage.get("completion_tokens", 0))
        self._new["waiting_ms"] += int(waiting * 1000)
        self._new["spent_ms"] += int((waiting + busy) * 1000)

    def _count(self, record: RolloutRecord) -> None:
        self._counts[record.status] += 1
        if record.status == "finished":
            self._counts["passed"] += record.passed
            self._reward += record.reward or 0.0

    def progress(self, workers: int, elapsed_s: float) -> Progress:
        """Return the moment as it is now."""
        counts, new = self._counts, self._new
        tried = counts["finished"] + counts["errored"]
        left = self._owed - new["rollouts"]
        return Progress(
            planned=self._planned,
            done=tried + counts["skipped"],
            passed=counts["passed"],
            errored=counts["errored"],
            running=min(workers, left),
            mean_reward=self._reward / tried if tried else None,
            elapsed_s=elapsed_s,
            eta_s=elapsed_s / new["rollouts"] * left if new["rollouts"] else None,
            tokens_per_s=new["tokens"] / elapsed_s if elapsed_s > 0 else 0.0,
            waiting_share=new["waiting_ms"] / new["spent_ms"] if new["spent_ms"] else 0.0,
        )


async def evaluate(
    tasks: TaskSet | TaskSelection,
    engine: RolloutEngine,
    *,
    env: EnvConfig,
    servers: Sequence[ServerConfig] = (),
    run_dir: Path,
    resume: bool = False,
    model_names: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Summary:
    """Evaluate tasks on an open engine and record them in a run directory.

    Args:
        tasks: A task set (loaded, and narrowed by ``env.task_filter``), or chosen tasks.
        engine: Entered; made with the same ``env`` and ``servers``.
        env: Configuration.
        servers: Model endpoints, for the record.
        run_dir: Run directory.
        resume: Run only what is missing or errored in ``run_dir``.
        model_names: Names for reports where the engine was given a model object.
        on_progress: Hears of the start and of every rollout's end.

    Raises:
        HermesRLError: What stopped the run; what finished is recorded.
    """
    selection = tasks if isinstance(tasks, TaskSelection) else await load_selection(tasks, env)
    plan = await plan_evaluation(
        selection, env, servers, directory=run_dir, resume=resume, model_names=model_names
    )
    async with plan.open_log() as log:
        evaluation = Evaluation(
            selection, engine, log, workers=plan.workers, on_progress=on_progress
        )
        return await evaluation.run()
