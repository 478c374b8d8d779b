"""Configuration of Atropos environments: the fields of both worlds in one model."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from hermes_rl.atropos.wandb_files import wandb_files_together
from hermes_rl.bounds import MOST_TOKENS
from hermes_rl.config import AFFECTS_SCORE, AgentFields, SelectionFields, TrainingFields

with wandb_files_together():
    from atroposlib.envs.base import BaseEnvConfig

__all__ = ["HermesAgentEnvConfig"]


class HermesAgentEnvConfig(
    AgentFields,
    SelectionFields,
    TrainingFields,
    BaseEnvConfig,  # type: ignore[misc] # atroposlib has no types
):
    """``BaseEnvConfig`` with the agent's fields; unknown fields are refused.

    Subclass it to add fields of your own. Three fields mean something here that they do not mean
    in Atropos: ``steps_per_eval=1`` evaluates after every step, ``worker_timeout`` is enforced
    only where it was set (its default of 600 s is less than most agents need), and
    ``tokenizer_name`` is loaded only when it was set.
    """

    max_token_length: Annotated[int | None, AFFECTS_SCORE] = Field(
        default=2048, ge=1, le=MOST_TOKENS
    )
    """Tokens of one sequence, prompt included; None = the model's context (as in evaluate)."""

    @model_validator(mode="after")
    def _one_choice_of_tools(self) -> Self:
        if self.distribution is not None and self.enabled_toolsets is not None:
            raise ValueError("set distribution or enabled_toolsets, not both")
        return self
