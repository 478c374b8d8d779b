"""What an environment logs and keeps from step to step: metrics, rollout tables, checkpoints."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import orjson
from atroposlib.envs.base import BaseEnv

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.packing import has_own_hook, listed
from hermes_rl.atropos.tracking import Tracker, readable
from hermes_rl.results import RolloutResult
from hermes_rl.runlog.files import write_whole
from hermes_rl.types import JSONObject

__all__ = ["EnvironmentLog"]


class EnvironmentLog(BaseEnv):  # type: ignore[misc] # atroposlib has no types
    """The logging half of :class:`~hermes_rl.atropos.base_env.HermesAgentBaseEnv`.

    Attributes:
        curr_step: The trainer's step.
        tracker: Where metrics and tables go.
        rollout_counters: Sums since the start, logged as ``rollouts/<name>``.
    """

    name: str | None
    config: HermesAgentEnvConfig

    def _begin_log(self) -> None:
        """Set what this class keeps; the environment's constructor calls it."""
        self.curr_step = 0
        self.wandb_prepend: str | None = None
        self.wandb_project: str | None = None
        self.wandb_group: str | None = None
        self.checkpoint_dir = ""
        self.checkpoint_interval = -1
        self.items_sent_this_step = 0
        self.completion_lengths: list[int] = []
        self.rollouts_for_wandb: list[list[tuple[str, float]]] = []
        self.rollout_counters: dict[str, int] = {}
        self.tracker = Tracker()
        self._scores: list[float] = []

    async def note_group(self, group: JSONObject) -> None:
        """Remember a scored group for the next log; called once per group that counts."""
        self._scores.extend(group["scores"])
        own = has_own_hook(self, "add_rollouts_for_wandb")
        await self.add_rollouts_for_wandb(await listed(group) if own else group)

    async def add_rollouts_for_wandb(self, scored_data: Any, item: Any = None) -> None:
        """Keep rollouts of a group for the wandb table: readable conversations and scores."""
        if not self.tracker.is_on:
            return
        keep = self.config.num_rollouts_per_group_for_logging
        messages = scored_data.get("messages") or []
        rows = [
            (readable(conversation), score)
            for conversation, score in zip(messages, scored_data["scores"], strict=True)
        ]
        self.rollouts_for_wandb.append(rows if keep == -1 else rows[:keep])
        del self.rollouts_for_wandb[: -self.config.num_rollouts_to_keep]

    async def create_rollout_table(self, wandb_metrics: dict[str, Any]) -> dict[str, Any]:
        """Add the table of rollouts to ``wandb_metrics`` and return it."""
        rows = [row for group in self.rollouts_for_wandb for row in group]
        if rows and self.tracker.is_on:
            wandb_metrics["train/rollouts"] = self.tracker.table(["text", "score"], rows)
        return wandb_metrics

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        """Log metrics of the current step; override to add your own, then call this."""
        metrics = await self.create_rollout_table(dict(wandb_metrics or {}))
        metrics |= self._train_metrics()
        self.rollouts_for_wandb = []
        self.completion_lengths = []
        self._scores = []
        if self.wandb_prepend is not None:
            metrics = {f"{self.wandb_prepend}_{name}": value for name, value in metrics.items()}
        await self.tracker.log(metrics, step=self.curr_step)

    async def log_step(self) -> None:
        """Log if enough groups were sent since the last time; the scheduler's part."""
        least = self.config.min_items_sent_before_logging
        if self.items_sent_this_step >= least:
            await self.wandb_log()
            self.items_sent_this_step = 0

    async def log_rest(self) -> None:
        """Log what came since the last time, however little, when a run has ended by itself."""
        if self._scores:
            await self.wandb_log()

    def _train_metrics(self) -> dict[str, float]:
        metrics = {f"rollouts/{name}": float(n) for name, n in self.rollout_counters.items()}
        for name, values in (("reward", self._scores), ("tokens", self.completion_lengths)):
            if values:
                metrics[f"train/{name}_mean"] = statistics.fmean(values)
                metrics[f"train/{name}_min"] = float(min(values))
                metrics[f"train/{name}_max"] = float(max(values))
        return metrics

    def save_checkpoint(self, step: int, data: JSONObject | None = None) -> None:
        """Write ``data`` under the trainer's checkpoint directory; None writes nothing."""
        if data is not None:
            path = self._checkpoint_path(step)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, [orjson.dumps(data)])

    def load_checkpoint(self) -> None:
        """Set the attributes that the checkpoint of the current step holds, if there is one."""
        path = self._checkpoint_path(self.curr_step)
        if path.exists():
            for name, value in orjson.loads(path.read_bytes()).items():
                setattr(self, name, value)

    def _checkpoint_path(self, step: int) -> Path:
        folder = Path(self.checkpoint_dir, "env_checkpoints", self.wandb_prepend or self.name or "")
        return folder / f"step-{step}.json"

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter that is logged as ``rollouts/<name>``."""
        self.rollout_counters[name] = self.rollout_counters.get(name, 0) + amount

    def _note_rollout(self, result: RolloutResult, length: int) -> None:
        assert result.agent is not None
        self.completion_lengths.append(length)
        self.count("tool_errors", len(result.agent.tool_errors))
        self.count("turns", result.agent.turns_used)
        for name, amount in result.agent.counters.items():
            self.count(name, amount)
