"""``hermes-swe`` as an Atropos environment: write functions, hidden tests decide.

Every tenth task is kept for the evaluation and never trained on.
"""

from __future__ import annotations

import logging
from typing import Any

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.task_set_env import TaskSetEnv
from hermes_rl.config import ServerConfig
from hermes_rl.envs.hermes_swe_env.task_set import HermesSwe
from hermes_rl.legacy.catalog import ask_blocking
from hermes_rl.legacy.settings import LegacySettings
from hermes_rl.tools.toolsets import toolset_tools

__all__ = ["HermesSweEnv"]

EVAL_EVERY = 10

_log = logging.getLogger("hermes_rl.envs")


def _usable_toolsets() -> list[str]:
    """Return terminal, file and, where it is available, web."""
    settings = LegacySettings()
    if settings.is_present and toolset_tools("web") & ask_blocking(settings).schemas.keys():
        return ["terminal", "file", "web"]
    _log.warning("hermes-swe runs without the toolset web: it is not available here.")
    return ["terminal", "file"]


class HermesSweEnv(TaskSetEnv):
    """Write a Python function; tests run in the same sandbox."""

    name = "hermes-swe"

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, Any]:
        """Terminal, file and web tools."""
        config = cls.env_config_cls(
            enabled_toolsets=_usable_toolsets(),
            max_agent_turns=30,
            max_token_length=4096,
            dataset_split="test",
            wandb_name="hermes-swe",
        )
        return config, [ServerConfig()]

    @staticmethod
    def make_task_set(env: Any) -> HermesSwe:
        """Return the tasks of the configured data set."""
        config = env.config
        return HermesSwe(config.dataset_name, config.dataset_split, config.prompt_field)

    async def setup(self) -> None:
        """Load the tasks and keep every tenth for the evaluation."""
        await super().setup()
        if not self.eval_tasks:
            self.eval_tasks = self.tasks[::EVAL_EVERY]
            kept = {task.id for task in self.eval_tasks}
            self.train_tasks = [t for t in self.tasks if t.id not in kept] or list(self.tasks)


if __name__ == "__main__":
    from hermes_rl.envs.hermes_swe_env.hermes_swe_env import HermesSweEnv as Environment

    Environment.cli()
