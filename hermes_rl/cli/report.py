"""A run's scores as plain text."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_rl.runlog.schema import RolloutRecord, RunHeader
from hermes_rl.runlog.scores import Score, Summary

__all__ = ["rollout_table", "score_text", "summary_text"]

LONGEST_MESSAGE = 300
"""Characters of an error in the report; all of it is in the run directory."""


def summary_text(header: RunHeader, summary: Summary) -> str:
    """Return the report of a run."""
    lines = [_title(header), ""]
    if not summary.complete:
        lines += [f"INCOMPLETE: {summary.recorded} of {summary.planned} rollouts ran.", ""]
    lines += _figures(summary)
    for key, table in summary.breakdowns.items():
        lines += ["", f"by {key}", *_score_rows(table)]
    if summary.errors:
        lines += ["", "errors (0 in the pass rate)", *_errors(summary)]
    if summary.skipped:
        lines += ["", "skipped (in no figure)", *_counts(summary.skipped).values()]
    if summary.stop_reasons:
        lines += ["", "how agents ended", *_counts(summary.stop_reasons).values()]
    lines += ["", _usage(summary)]
    return "\n".join(lines)


def _title(header: RunHeader) -> str:
    scores = header.score_config
    version = f" {header.task_set_version}" if header.task_set_version else ""
    return (
        f"{header.task_set}{version}: {', '.join(header.models)} on "
        f"{scores.get('env.terminal_backend', '?')}, {len(header.task_ids)} tasks x "
        f"{header.attempts}, temperature {scores.get('env.agent_temperature', '?')}, "
        f"hermes_rl {header.engine_version}"
    )


def _figures(summary: Summary) -> list[str]:
    headline = summary.headline
    rows = [("pass rate", score_text(headline))]
    if summary.errored:
        rows.append(("without errors", score_text(summary.without_errors)))
    if summary.flagged_passes:
        rows.append(("flagged passes", f"{summary.flagged_passes} (counted above)"))
        rows.append(("flagged as 0", score_text(summary.flagged_as_zero)))
    if headline.mean_reward is not None:
        error = headline.standard_error
        spread = "" if error is None else f" +- {error:.3f} (standard error)"
        rows.append(("mean reward", f"{headline.mean_reward:.3f}{spread}"))
    if len(summary.pass_at_k) > 1:
        rows += [(f"pass@{k}", f"{value:.3f}") for k, value in summary.pass_at_k.items()]
    return [f"{name:<15} {value}" for name, value in rows]


def score_text(score: Score) -> str:
    """Return ``0.750 [0.612, 0.851] 39 of 52``; the interval is Wilson's 95 %."""
    if score.pass_rate is None or score.interval is None:
        return "none: nothing was run"
    low, high = score.interval
    return f"{score.pass_rate:.3f} [{low:.3f}, {high:.3f}]  {score.passed} of {score.rollouts}"


def _score_rows(table: dict[str, Score]) -> list[str]:
    """Return a table's rows; with mean rewards where a reward can be between pass and fail."""
    width = max(map(len, table))
    rows = {name: score_text(score) for name, score in table.items()}
    if any(score.mean_reward != score.pass_rate for score in table.values()):
        wide = max(map(len, rows.values()))
        rows = {name: f"{text:<{wide}}{_mean(table[name])}" for name, text in rows.items()}
    return [f"  {name:<{width}}  {text}" for name, text in rows.items()]


def _mean(score: Score) -> str:
    return "" if score.mean_reward is None else f"  mean reward {score.mean_reward:.3f}"


def _counts(counts: dict[str, int]) -> dict[str, str]:
    """Return a line by name, the most frequent first."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: f"  {count:>5}  {name}" for name, count in ordered}


def _errors(summary: Summary) -> list[str]:
    """Return the counts, and under each what the first of its kind said."""
    lines = []
    for name, count in _counts(summary.errors).items():
        said = " ".join(summary.error_messages.get(name, "").split())
        lines += [count, f"         {said[:LONGEST_MESSAGE]}"] if said else [count]
    return lines


def _usage(summary: Summary) -> str:
    usage = summary.usage
    cost = usage.get("cost_usd", 0.0)
    return (
        f"{usage.get('prompt_tokens', 0):.0f} prompt and "
        f"{usage.get('completion_tokens', 0):.0f} sampled tokens in "
        f"{usage.get('requests', 0):.0f} requests" + (f", {cost:.4f} USD" if cost else "")
    )


def rollout_table(records: Sequence[RolloutRecord]) -> str:
    """Return one line per rollout."""
    width = max((len(record.task_id) for record in records), default=4)
    head = f"{'task':<{width}}  try  reward  turns  tools  seconds  end"
    return "\n".join([head, *(_row(record, width) for record in records)])


def _row(record: RolloutRecord, width: int) -> str:
    reward = "-" if record.reward is None else f"{record.reward:g}"
    end = record.stop_reason or ""
    if record.failure and record.status != "finished":
        first_line = record.failure.message.partition("\n")[0]
        end = f"{record.status.upper()} {record.failure.kind}: {first_line}"
    flags = f"  FLAGGED {'; '.join(record.flags)}" if record.flags else ""
    seconds = record.timings.get("agent", 0.0)
    return (
        f"{record.task_id:<{width}}  {record.attempt:>3}  {reward:>6}  {record.turns:>5}  "
        f"{record.tool_calls:>5}  {seconds:>7.1f}  {end}{flags}"
    )
