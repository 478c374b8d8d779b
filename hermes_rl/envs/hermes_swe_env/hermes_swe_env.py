"""``hermes-swe`` as an Atropos environment: write functions, hidden tests decide.

Every tenth task is kept for the evaluation and never trained on, unless the rows say themselves
which are (``split``).
"""

from __future__ import annotations

import logging
from typing import Any

from hermes_rl.atropos.config import HermesAgentEnvConfig
from hermes_rl.atropos.task_set_env import TaskSetEnv
from hermes_rl.config import ServerConfig
from hermes_rl.envs.hermes_swe_env.task_set import HermesSwe, LanguageField
from hermes_rl.errors import TaskError
from hermes_rl.legacy.catalog import ask_blocking
from hermes_rl.legacy.settings import LegacySettings
from hermes_rl.tools.toolsets import toolset_tools

__all__ = ["HermesSweEnv", "HermesSweEnvConfig"]

EVAL_EVERY = 10

_log = logging.getLogger("hermes_rl.envs")


def _usable_toolsets() -> list[str]:
    """Return terminal, file and, where it is available, web."""
    settings = LegacySettings()
    if settings.is_present and toolset_tools("web") & ask_blocking(settings).schemas.keys():
        return ["terminal", "file", "web"]
    _log.warning("hermes-swe runs without the toolset web: it is not available here.")
    return ["terminal", "file"]


class HermesSweEnvConfig(LanguageField, HermesAgentEnvConfig):
    """The usual fields and ``language``."""


class HermesSweEnv(TaskSetEnv):
    """Write a function; hidden tests run in the same sandbox."""

    name = "hermes-swe"
    env_config_cls = HermesSweEnvConfig

    @classmethod
    def config_init(cls) -> tuple[HermesAgentEnvConfig, Any]:
        """Terminal, file and web tools."""
        config = cls.env_config_cls(
            enabled_toolsets=_usable_toolsets(),
            max_agent_turns=30,
            max_token_length=4096,
            wandb_name="hermes-swe",
        )
        return config, [ServerConfig()]

    @staticmethod
    def make_task_set(env: Any) -> HermesSwe:
        """Return the tasks of the configured data set."""
        config = env.config
        split = config.dataset_split if "dataset_split" in config.model_fields_set else None
        return HermesSwe(config.dataset_name, split, config.prompt_field, config.language)

    async def setup(self) -> None:
        """Load the tasks, keep every tenth for the evaluation, leave out what cannot be trained."""
        await super().setup()
        if not self.eval_tasks:
            self.eval_tasks = self.tasks[::EVAL_EVERY]
            kept = {task.id for task in self.eval_tasks}
            self.train_tasks = [t for t in self.tasks if t.id not in kept] or list(self.tasks)
        self.train_tasks = [task for task in self.train_tasks if not _needs_more(task)]
        if not self.train_tasks:
            raise TaskError("hermes-swe has no task whose tests need only what the language has.")


def _needs_more(task: Any) -> bool:
    """Say whether the hidden tests need what a sandbox with the compiler may lack."""
    return task.language.needs(task.test) is not None


if __name__ == "__main__":
    from hermes_rl.envs.hermes_swe_env.hermes_swe_env import HermesSweEnv as Environment

    Environment.cli()
