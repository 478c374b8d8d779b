"""From records to numbers that can be published.

* The **headline** counts every rollout that was tried: an error of infrastructure is a 0 there. A
  second figure leaves errors out, a third counts passes that carry a flag as 0.
* A rollout passes when its reward is at least 1. Skipped tasks (the backend lacks something they
  need) were never tried; they are in no figure and are listed by reason.
* ``interval`` is Wilson's 95 % score interval of the pass rate. Attempts of one task are not
  independent, so its sample size is the effective one: the number of tasks where attempts always
  agree, up to the number of rollouts where they are as different as chance makes them.
* ``standard_error`` belongs to the mean reward: the standard deviation of the per-task means over
  the square root of the number of tasks; None below two tasks.
* pass@k is the unbiased estimator 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv:2107.03374),
  averaged over the tasks with at least k attempts; errors are failures in it.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hermes_rl.runlog.schema import RolloutRecord

__all__ = ["Score", "Summary", "pass_at_k", "summarise", "wilson_interval"]

Z_95 = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""
BREAKDOWNS = ("category", "difficulty")
"""Metadata keys with a table of their own."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Score:
    """The score of a set of rollouts; rates and means are None where there is none."""

    rollouts: int = 0
    tasks: int = 0
    passed: int = 0
    pass_rate: float | None = None
    interval: tuple[float, float] | None = None
    mean_reward: float | None = None
    standard_error: float | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Summary:
    """All that a report says about a run.

    Attributes:
        planned: Rollouts the run consists of.
        recorded: Rollouts with a record, skipped ones included.
        headline: Errors count as 0.
        without_errors: Errors left out.
        flagged_passes: Passes that carry a flag; they count in the headline.
        flagged_as_zero: The headline with flagged passes counted as 0.
        pass_at_k: By k.
        breakdowns: Headline scores by metadata key and value.
        errors: Errored rollouts by kind.
        error_messages: By kind, what the first of them said.
        skipped: Skipped rollouts by reason.
        stop_reasons: Rollouts by the agent's stop reason.
        usage: Tokens, requests and cost, summed.
        timings: Seconds, summed.
        counters: Named counts of the agents, summed.
    """

    planned: int
    recorded: int
    headline: Score
    without_errors: Score
    flagged_passes: int
    flagged_as_zero: Score
    pass_at_k: dict[int, float] = field(default_factory=dict)
    breakdowns: dict[str, dict[str, Score]] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    error_messages: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    stop_reasons: dict[str, int] = field(default_factory=dict)
    usage: dict[str, float] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every planned rollout has a record."""
        return self.recorded == self.planned

    @property
    def errored(self) -> int:
        """Rollouts that ended in an error of infrastructure."""
        return sum(self.errors.values())


@dataclass(slots=True, frozen=True)
class _Outcome:
    task_id: str
    reward: float
    passed: bool


def summarise(records: Sequence[RolloutRecord], *, planned: int) -> Summary:
    """Return the summary of the records that count (one per task and attempt)."""
    tried = [record for record in records if record.status != "skipped"]
    sound = [record for record in tried if record.status == "finished"]
    errored = [record for record in tried if record.status == "errored"]
    return Summary(
        planned=planned,
        recorded=len(records),
        headline=_score(tried),
        without_errors=_score(sound),
        flagged_passes=sum(bool(record.flags) and _passed(record) for record in tried),
        flagged_as_zero=_score_of(
            _Outcome(record.task_id, 0.0, False) if record.flags else _outcome(record)
            for record in tried
        ),
        pass_at_k=_pass_at_each_k(tried),
        breakdowns=_breakdowns(tried),
        errors=dict(Counter(map(_kind, errored))),
        error_messages={_kind(record): _reason(record) for record in reversed(errored)},
        skipped=dict(Counter(_reason(record) for record in records if record.status == "skipped")),
        stop_reasons=dict(Counter(r.stop_reason for r in tried if r.stop_reason)),
        usage=_sum(record.usage for record in tried),
        timings=_sum(record.timings for record in tried),
        counters={name: int(n) for name, n in _sum(record.counters for record in tried).items()},
    )


def _passed(record: RolloutRecord) -> bool:
    """An errored rollout never passes, whatever its verifier said before it failed."""
    return record.status == "finished" and record.passed


def _outcome(record: RolloutRecord) -> _Outcome:
    reward = (record.reward or 0.0) if record.status == "finished" else 0.0
    return _Outcome(record.task_id, reward, _passed(record))


def _kind(record: RolloutRecord) -> str:
    return record.failure.kind if record.failure else "unknown"


def _reason(record: RolloutRecord) -> str:
    return record.failure.message if record.failure else "unknown"


def _score(records: Iterable[RolloutRecord]) -> Score:
    return _score_of(map(_outcome, records))


def _score_of(outcomes: Iterable[_Outcome]) -> Score:
    """Return the score of outcomes, grouped by task for the errors of its figures."""
    by_task: defaultdict[str, list[_Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_task[outcome.task_id].append(outcome)
    every = [outcome for group in by_task.values() for outcome in group]
    if not every:
        return Score()
    rate = statistics.fmean(outcome.passed for outcome in every)
    task_rates = [statistics.fmean(o.passed for o in group) for group in by_task.values()]
    task_rewards = [statistics.fmean(o.reward for o in group) for group in by_task.values()]
    return Score(
        rollouts=len(every),
        tasks=len(by_task),
        passed=sum(outcome.passed for outcome in every),
        pass_rate=rate,
        interval=wilson_interval(rate, _effective_size(rate, task_rates, len(every))),
        mean_reward=statistics.fmean(outcome.reward for outcome in every),
        standard_error=_standard_error(task_rewards),
    )


def _standard_error(task_means: Sequence[float]) -> float | None:
    if len(task_means) < 2:
        return None
    return statistics.stdev(task_means) / math.sqrt(len(task_means))


def _effective_size(rate: float, task_rates: Sequence[float], rollouts: int) -> float:
    """Return how many independent rollouts the clustered ones are worth."""
    error = _standard_error(task_rates)
    if error is None or rate in (0.0, 1.0):
        return len(task_rates)
    if error == 0.0:
        return rollouts
    return min(max(rate * (1 - rate) / error**2, len(task_rates)), rollouts)


def wilson_interval(rate: float, size: float) -> tuple[float, float]:
    """Return Wilson's 95 % score interval for a rate seen in ``size`` independent trials."""
    z_squared = Z_95**2
    centre = (rate + z_squared / (2 * size)) / (1 + z_squared / size)
    spread = math.sqrt(rate * (1 - rate) / size + z_squared / (4 * size**2))
    half = Z_95 * spread / (1 + z_squared / size)
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(attempts: int, passed: int, k: int) -> float:
    """Return the unbiased estimate that at least one of ``k`` attempts passes.

    Args:
        attempts: Attempts made, at least ``k``.
        passed: How many of them passed.
        k: Attempts allowed.
    """
    return 1.0 - math.comb(attempts - passed, k) / math.comb(attempts, k)


def _pass_at_each_k(tried: Sequence[RolloutRecord]) -> dict[int, float]:
    """Return pass@k for k = 1, 2, 4 ... and the largest number of attempts."""
    groups: defaultdict[str, list[bool]] = defaultdict(list)
    for record in tried:
        groups[record.task_id].append(_passed(record))
    most = max(map(len, groups.values()), default=0)
    powers = {1 << exponent for exponent in range(most.bit_length())}
    estimates = {}
    for k in sorted({*powers, most} - {0}):
        ready = [passes for passes in groups.values() if len(passes) >= k]
        estimates[k] = statistics.fmean(pass_at_k(len(p), sum(p), k) for p in ready)
    return estimates


def _breakdowns(tried: Sequence[RolloutRecord]) -> dict[str, dict[str, Score]]:
    tables = {}
    for key in BREAKDOWNS:
        groups: defaultdict[str, list[RolloutRecord]] = defaultdict(list)
        for record in tried:
            if record.metadata.get(key) is not None:
                groups[str(record.metadata[key])].append(record)
        if groups:
            tables[key] = {value: _score(groups[value]) for value in sorted(groups)}
    return tables


def _sum(rows: Iterable[dict[str, float] | dict[str, int]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for row in rows:
        for name, number in row.items():
            total[name] += number  # type: ignore[assignment]  # a Counter adds floats as well
    return dict(total)
