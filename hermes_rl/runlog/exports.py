"""``metrics.json`` and ``samples.jsonl`` in the layout of Atropos' ``evaluate_log`` (0.4.0).

``metrics.json`` is ``{"config_general": {model_name, total_evaluation_time_seconds (text),
generation_parameters}, "results": {"atropos|<name>_eval|0": metrics, "all": metrics}}`` with flat,
numeric metrics; our own summary stands beside it under ``hermes_rl``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, count

from hermes_rl.runlog.schema import RolloutRecord, RunHeader
from hermes_rl.runlog.scores import Summary
from hermes_rl.types import JSONObject

__all__ = ["flat_metrics", "metrics_of", "samples_of"]

_GENERATION = {
    "env.max_token_length": "max_new_tokens",
    "env.agent_temperature": "temperature",
    "env.max_agent_turns": "max_agent_turns",
    "env.max_tokens_per_turn": "max_tokens_per_turn",
}


def metrics_of(header: RunHeader, summary: Summary, *, wall_s: float) -> JSONObject:
    """Return the content of ``metrics.json``."""
    metrics = {**flat_metrics(summary), "eval/evaluation_time_seconds": wall_s}
    scores = header.score_config
    return {
        "config_general": {
            "model_name": ", ".join(header.models),
            "total_evaluation_time_seconds": str(wall_s),
            "generation_parameters": {
                theirs: scores[ours]
                for ours, theirs in _GENERATION.items()
                if scores.get(ours) is not None
            },
        },
        "results": {f"atropos|{header.task_set}_eval|0": metrics, "all": metrics},
        "hermes_rl": {
            "run_id": header.run_id,
            "engine_version": header.engine_version,
            "task_set": header.task_set,
            "task_set_version": header.task_set_version,
            "complete": summary.complete,
            "wall_s": wall_s,
            **asdict(summary),
        },
    }


def flat_metrics(summary: Summary) -> dict[str, float]:
    """Return the figures as ``eval/...`` names with numbers; what has no value is left out."""
    headline, sound = summary.headline, summary.without_errors
    low, high = headline.interval or (None, None)
    figures: dict[str, float | None] = {
        "eval/pass_rate": headline.pass_rate,
        "eval/pass_rate_low": low,
        "eval/pass_rate_high": high,
        "eval/mean_reward": headline.mean_reward,
        "eval/mean_reward_standard_error": headline.standard_error,
        "eval/pass_rate_without_errors": sound.pass_rate,
        "eval/pass_rate_flagged_as_zero": summary.flagged_as_zero.pass_rate,
        "eval/flagged_passes": summary.flagged_passes,
        "eval/total_tasks": headline.tasks,
        "eval/total_rollouts": headline.rollouts,
        "eval/passed_rollouts": headline.passed,
        "eval/errored_rollouts": summary.errored,
        "eval/skipped_rollouts": sum(summary.skipped.values()),
        "eval/planned_rollouts": summary.planned,
    }
    figures |= {f"eval/pass@{k}": value for k, value in summary.pass_at_k.items()}
    for key, table in summary.breakdowns.items():
        for value, word in _words(table).items():
            figures[f"eval/pass_rate_{key}_{word}"] = table[value].pass_rate
            figures[f"eval/mean_reward_{key}_{word}"] = table[value].mean_reward
    return {name: value for name, value in figures.items() if value is not None}


def _words(values: Iterable[str]) -> dict[str, str]:
    """Return values as parts of names; of those that would get the same, all but one a number."""
    words: dict[str, str] = {}
    taken: set[str] = set()
    # Values that are such a word already come first: no other takes their name.
    for value in sorted(values, key=lambda value: (_word(value) != value, value)):
        word = _word(value)
        candidates = chain([word], (f"{word}_{number}" for number in count(2)))
        words[value] = next(name for name in candidates if name not in taken)
        taken.add(words[value])
    return words


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text.strip().lower())


def samples_of(records: Sequence[RolloutRecord]) -> Iterator[JSONObject]:
    """Yield one line per rollout; the conversation is in the transcript it names."""
    for record in records:
        yield {
            "task_id": record.task_id,
            "attempt": record.attempt,
            "score": record.reward if record.status == "finished" else 0.0,
            "passed": record.status == "finished" and record.passed,
            "status": record.status,
            "flags": record.flags,
            "turns": record.turns,
            "tool_calls": record.tool_calls,
            "tool_errors": record.tool_errors,
            "finish_reason": record.stop_reason,
            "finished_naturally": record.stop_reason == "finished",
            "category": record.metadata.get("category"),
            "difficulty": record.metadata.get("difficulty"),
            "error": record.failure.message if record.failure else None,
            "transcript": record.transcript,
        }
