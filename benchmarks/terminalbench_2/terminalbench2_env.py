"""Terminal-Bench 2.0 as an Atropos environment: ``evaluate``, but also ``process``, ``serve``."""

from __future__ import annotations

from typing import Any, ClassVar

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.task_set_env import TaskSetEnv
from hermes_rl.benchmarks.terminalbench_2.task_set import TerminalBench2
from hermes_rl.config import ServerConfig

__all__ = ["TerminalBench2EvalEnv"]


class TerminalBench2EvalEnv(TaskSetEnv):
    """Solve tasks in a terminal; each task's own tests decide."""

    name = TerminalBench2.name
    tasks_cls: ClassVar[type[TerminalBench2]] = TerminalBench2

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, Any]:
        """Terminal and file tools, 60 turns, the limits of each task."""
        config = cls.env_config_cls(
            **cls.tasks_cls.defaults(),
            group_size=1,
            steps_per_eval=1,
            total_steps=1,
            eval_handling="STOP_TRAIN",
            wandb_name=cls.name,
        )
        return config, [ServerConfig()]

    @staticmethod
    def make_task_set(env: Any) -> TerminalBench2:
        """Return the tasks of the configured source."""
        config = env.config
        tasks: TerminalBench2 = env.tasks_cls(
            config.dataset_name, config.dataset_split, config.force_build
        )
        return tasks


if __name__ == "__main__":
    from hermes_rl.benchmarks.terminalbench_2.terminalbench2_env import (
        TerminalBench2EvalEnv as Environment,
    )

    Environment.cli()
