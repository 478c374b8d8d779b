"""YC-Bench as an Atropos environment: ``evaluate`` runs every game; also for process and serve."""

from __future__ import annotations

from typing import Any

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.task_set_env import TaskSetEnv
from hermes_rl.benchmarks.yc_bench.settings import AGENT_DEFAULTS, GameFields
from hermes_rl.benchmarks.yc_bench.task_set import YCBench
from hermes_rl.config import ServerConfig

__all__ = ["YCBenchEvalConfig", "YCBenchEvalEnv"]


class YCBenchEvalConfig(GameFields, HermesAgentEnvConfig):
    """Adds what is played."""


class YCBenchEvalEnv(TaskSetEnv):
    """Run a simulated company through its command line."""

    name = "yc-bench"
    env_config_cls = YCBenchEvalConfig

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, Any]:
        """Terminal only, 200 turns, greedy, one game at a time."""
        config = cls.env_config_cls(
            **AGENT_DEFAULTS,
            eval_handling="STOP_TRAIN",
            steps_per_eval=1,
            total_steps=1,
            wandb_name="yc-bench",
        )
        return config, [ServerConfig()]

    @staticmethod
    def make_task_set(env: Any) -> YCBench:
        """Return the configured games."""
        return YCBench(env.config.presets, env.config.seeds)


if __name__ == "__main__":
    from hermes_rl.benchmarks.yc_bench.yc_bench_env import YCBenchEvalEnv as Environment

    Environment.cli()
