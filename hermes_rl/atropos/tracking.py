"""Weights & Biases: opened in every mode that logs, off the event loop, without secrets.

Nothing asks for a key: without ``WANDB_API_KEY``, a ``~/.netrc`` entry or ``WANDB_MODE``, logging
is off, with one line that says so.
"""

from __future__ import annotations

import logging
import netrc
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.to_thread

from hermes_rl.atropos.wandb_files import wandb_files_together
from hermes_rl.errors import MissingExtra
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.runlog.exports import flat_metrics, samples_of
from hermes_rl.runlog.schema import RolloutRecord
from hermes_rl.runlog.scores import Summary
from hermes_rl.types import JSONObject, Message

__all__ = ["Tracker", "is_wandb_usable", "log_evaluation", "open_tracker", "readable"]

_log = logging.getLogger("hermes_rl.atropos")
_wandb_thread = LoopLimiter(1)
"""wandb's calls block and must stay in order."""
CLOSE_S = 30.0
"""Seconds for wandb to finish writing or uploading."""
MAX_ROWS = 5000
"""Rollouts in the table of an evaluation; all are in the run directory."""
SAMPLE_COLUMNS = (
    "task_id",
    "attempt",
    "score",
    "passed",
    "status",
    "category",
    "difficulty",
    "turns",
    "finish_reason",
    "error",
)
LONGEST_CELL = 20_000
"""Characters of one trajectory in a table."""


def is_wandb_usable(environ: Mapping[str, str] | None = None) -> bool:
    """Say whether logging can work without asking anyone for a key."""
    environ = os.environ if environ is None else environ
    if environ.get("WANDB_MODE") in ("offline", "dryrun") or environ.get("WANDB_API_KEY"):
        return True
    if environ.get("WANDB_MODE") == "disabled":
        return False
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _content(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(str(part.get("text", part)) for part in content)
    lines = [content] if content else []
    for call in message.get("tool_calls") or []:
        function = call["function"]
        lines.append(f"-> {function['name']}({function['arguments']})")
    return "\n".join(lines)


def readable(messages: Sequence[Message]) -> str:
    """Return a conversation as text: role, content, tool calls; at most 20,000 characters."""
    text = "\n\n".join(f"[{message['role']}]\n{_content(message)}" for message in messages)
    omitted = len(text) - LONGEST_CELL
    if omitted <= 0:
        return text
    half = LONGEST_CELL // 2
    return f"{text[:half]}\n... {omitted:,} characters omitted ...\n{text[-half:]}"


class Tracker:
    """One open wandb run, or none: then every call does nothing."""

    def __init__(self, run: Any = None) -> None:
        self._run = run

    @property
    def is_on(self) -> bool:
        """Whether anything is logged."""
        return self._run is not None

    async def log(self, metrics: Mapping[str, Any], *, step: int) -> None:
        """Log metrics of one step."""
        if self._run is None:
            return
        run, values = self._run, dict(metrics)
        await anyio.to_thread.run_sync(lambda: run.log(values, step=step), limiter=_wandb_thread)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
        """Return a wandb table."""
        import wandb

        return wandb.Table(columns=list(columns), data=[list(row) for row in rows])


async def log_evaluation(
    tracker: Tracker, summary: Summary, records: Sequence[RolloutRecord]
) -> None:
    """Log an evaluation's figures and a table of its rollouts."""
    if not tracker.is_on:
        return
    rows = [[sample[name] for name in SAMPLE_COLUMNS] for sample in samples_of(records[:MAX_ROWS])]
    table = tracker.table(SAMPLE_COLUMNS, rows)
    await tracker.log({**flat_metrics(summary), "eval/rollouts": table}, step=0)


@asynccontextmanager
async def open_tracker(
    *,
    enabled: bool,
    name: str,
    config: JSONObject,
    project: str | None = None,
    group: str | None = None,
) -> AsyncIterator[Tracker]:
    """Open a wandb run if logging is wanted and possible.

    Args:
        enabled: ``use_wandb``.
        name: Name of the run.
        config: Configuration without secrets.
        project: None = wandb's default.
        group: Runs of one training.

    Raises:
        MissingExtra: wandb is not installed although it could be used.
    """
    if not enabled or not is_wandb_usable():
        if enabled:
            _log.warning("wandb is off: set WANDB_API_KEY, or WANDB_MODE=offline, to log there.")
        yield Tracker()
        return
    try:
        with wandb_files_together():
            import wandb
    except ImportError as error:
        raise MissingExtra.of("use_wandb", "wandb") from error
    run = await anyio.to_thread.run_sync(
        lambda: wandb.init(
            name=name, project=project, group=group, config=config, settings=_quiet(wandb)
        ),
        limiter=_wandb_thread,
    )
    try:
        yield Tracker(run)
    finally:
        with anyio.move_on_after(CLOSE_S, shield=True):
            await anyio.to_thread.run_sync(
                run.finish, limiter=_wandb_thread, abandon_on_cancel=True
            )


def _quiet(wandb: Any) -> Any:
    """Return settings that print nothing and record neither code, git nor console output.

    Nor the machine and the command line: keys may stand in that (``--openai.api_key``).
    """
    return wandb.Settings(
        silent=True, console="off", disable_code=True, disable_git=True, x_disable_meta=True
    )
