"""``terminal-test`` as an Atropos environment: three training tasks, one for evaluation.

Rewards are 1.0 (exact), 0.5 (contained) and 0.0. ``--env.task_filter split=variants`` trains on
the seeded variants instead.
"""

from __future__ import annotations

from typing import Any

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.task_set_env import TaskSetEnv
from hermes_rl.config import ServerConfig
from hermes_rl.envs.terminal_test_env.task_set import TerminalTest

__all__ = ["TerminalTestEnv"]


class TerminalTestEnv(TaskSetEnv):
    """Create one small file in the home directory."""

    name = "terminal-test"

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, Any]:
        """Terminal and file tools; a few turns are plenty; the classic tasks."""
        config = cls.env_config_cls(
            enabled_toolsets=["terminal", "file"],
            max_agent_turns=10,
            task_filter=["split=train", "split=held_out"],
            wandb_name="terminal-test",
        )
        return config, [ServerConfig()]

    @staticmethod
    def make_task_set(env: Any) -> TerminalTest:
        """Return the tasks of the configured seed."""
        return TerminalTest(seed=env.config.seed)


if __name__ == "__main__":
    from hermes_rl.envs.terminal_test_env.terminal_test_env import TerminalTestEnv as Environment

    Environment.cli()
