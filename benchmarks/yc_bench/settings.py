"""What is configured of ``yc-bench``: its games, and the agent's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from hermes_rl.config import ConfigModel, EnvConfig

__all__ = [
    "AGENT_DEFAULTS",
    "DEFAULT_PRESETS",
    "DEFAULT_SEEDS",
    "GameFields",
    "YCBenchConfig",
]

DEFAULT_PRESETS = ("fast_test", "medium", "hard")
DEFAULT_SEEDS = (1, 2, 3)
LARGEST_SEED = 2**31 - 1
AGENT_DEFAULTS: Mapping[str, Any] = {
    "enabled_toolsets": ["terminal"],
    "terminal_backend": "local",
    "terminal_timeout": 60,
    "max_agent_turns": 200,
    "agent_temperature": 0.0,
    "max_eval_workers": 1,
}
"""Terminal only, 200 turns, greedy, one game at a time."""


class GameFields(ConfigModel):
    """Which games are played: presets x seeds."""

    presets: list[str] = Field(default_factory=lambda: list(DEFAULT_PRESETS), min_length=1)
    """Presets of the yc-bench package."""
    seeds: list[Annotated[int, Field(ge=0, le=LARGEST_SEED)]] = Field(
        default_factory=lambda: list(DEFAULT_SEEDS), min_length=1
    )
    """Seeds of each preset."""


class YCBenchConfig(GameFields, EnvConfig):
    """Configuration of ``evaluate yc-bench``."""
