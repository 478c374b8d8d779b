"""Show a run as plain text; with TASK, what happened in its rollouts.

Control characters in what models and commands wrote are spelled out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from hermes_rl.cli.plain import die_with_the_pipe, printable
from hermes_rl.cli.report import rollout_table, summary_text
from hermes_rl.config_sources import Flag
from hermes_rl.errors import ConfigError, UnknownName
from hermes_rl.runlog.reader import RecordedRun, read_run, read_transcript
from hermes_rl.runlog.resume import planned
from hermes_rl.runlog.schema import RolloutRecord
from hermes_rl.runlog.scores import summarise
from hermes_rl.runlog.text import message_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``view``."""
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("task", nargs="?", metavar="TASK", help="show this task's rollouts")
    parser.add_argument("attempt", nargs="?", type=int, metavar="ATTEMPT", help="only this one")


def run(arguments: argparse.Namespace, flags: Sequence[Flag]) -> int:
    """Print the run or the rollouts."""
    if flags:
        raise ConfigError(f"view takes no settings, but got {flags[0]}.")
    die_with_the_pipe()
    recorded = read_run(arguments.run_dir)
    if arguments.task is None:
        print(printable(_run_text(recorded)))
        return 0
    for record in _chosen(recorded, arguments.task, arguments.attempt):
        for block in _rollout_blocks(recorded, record):
            print(printable(block), end="\n\n")
    return 0


def _run_text(recorded: RecordedRun) -> str:
    keys = planned(recorded.header)
    records = [recorded.records[key] for key in keys if key in recorded.records]
    summary = summarise(records, planned=len(keys))
    note = "\n(the last line of results.jsonl was cut short and does not count)"
    table = rollout_table(records)
    report = summary_text(recorded.header, summary)
    return f"{report}\n\n{table}{note if recorded.torn else ''}"


def _chosen(recorded: RecordedRun, task: str, attempt: int | None) -> list[RolloutRecord]:
    found = [
        record
        for (task_id, number), record in sorted(recorded.records.items())
        if task_id == task and attempt in (None, number)
    ]
    if not found:
        names = {name for name, _ in recorded.records}
        if task in names:
            raise ConfigError(f"{task} has no attempt {attempt} in {recorded.directory}.")
        raise UnknownName.of(f"task in {recorded.directory}:", task, names)
    return found


def _rollout_blocks(recorded: RecordedRun, record: RolloutRecord) -> Iterator[str]:
    yield _head(record)
    if record.transcript is None:
        yield "(no transcript: the agent never started)"
        return
    transcript = read_transcript(recorded.directory, record.task_id, record.attempt)
    for message in transcript.messages:
        yield message_text(message)
    if transcript.header.error:
        yield f"=== error\n{transcript.header.error}"


def _head(record: RolloutRecord) -> str:
    reward = "none" if record.reward is None else f"{record.reward:g}"
    lines = [
        f"##### {record.task_id}, attempt {record.attempt}: {record.status}, reward {reward}, "
        f"{record.turns} turns, ended by {record.stop_reason or 'nothing'}"
    ]
    lines += [f"flag: {flag}" for flag in record.flags]
    lines += [f"{name}: {value}" for name, value in record.evidence.items()]
    for failure in [*record.retried, *([record.failure] if record.failure else [])]:
        lines.append(f"{failure.phase} failed, {failure.kind}: {failure.message}")
        lines += [failure.traceback] if failure.traceback else []
    return "\n".join(lines)
