"""Configuration models: what can be set, its default and whether it affects scores.

Every model forbids unknown fields. A field whose annotation holds :data:`AFFECTS_SCORE` is
compared when a run is resumed; others may change. Command-line flags are ``--env.<field>`` and
``--openai.<field>``; where values come from and which source wins is in
:mod:`hermes_rl.config_layers`. A list field also takes comma-separated text.
"""

from __future__ import annotations

import enum
import os
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from hermes_rl.bounds import (
    LONGEST_S,
    MOST,
    MOST_MEMORY_MB,
    MOST_ROLLOUTS,
    MOST_TOKENS,
    MOST_WORKERS,
)
from hermes_rl.config_model import AFFECTS_SCORE, ConfigModel

__all__ = [
    "AFFECTS_SCORE",
    "AgentFields",
    "AtroposFields",
    "ConfigModel",
    "EnvConfig",
    "ProcessesAtReward",
    "SelectionFields",
    "ServerConfig",
    "ServerType",
    "TrainingFields",
]


ServerType = Literal["openai", "vllm", "sglang", "llamacpp", "local", "scripted", "oracle", "nop"]


class ProcessesAtReward(enum.StrEnum):
    """What happens to the agent's processes before scoring."""

    KEEP = "keep"
    KILL = "kill"


def _port_is_sound(url: str) -> bool:
    """Say whether host and port of an address can be read."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


class ServerConfig(ConfigModel):
    """One model endpoint. Accepts every field of Atropos' ``APIServerConfig``."""

    server_type: Annotated[ServerType, AFFECTS_SCORE] = "openai"
    """openai: any /v1/chat/completions server. vllm, sglang, llamacpp: token-exact on a stock
    server. local: the embedded model. oracle: each task's own solution. nop: does nothing."""
    model_name: Annotated[str, AFFECTS_SCORE] = "default"
    """Model as the server knows it."""
    base_url: str | None = None
    """Server address up to and with /v1; None = OpenAI's, or OpenRouter's if its key is set."""
    api_key: SecretStr | None = None
    """None = from the environment: OPENROUTER_API_KEY for openrouter.ai, else OPENAI_API_KEY."""
    tokenizer_name: str | None = None
    """Hugging Face tokenizer for token-exact clients; None = the model's."""
    timeout: int = Field(default=1200, ge=1, le=LONGEST_S)
    """Seconds one request may take, all of it."""
    num_max_requests_at_once: int = Field(default=512, ge=1, le=MOST)
    """Upper bound on requests in flight at this endpoint; the limiter adapts below it."""
    num_requests_for_eval: int = 64
    """Accepted for Atropos files; our one limiter per endpoint serves evaluation too."""
    rolling_buffer_length: int = 1000
    """Accepted for Atropos files; does nothing."""
    n_kwarg_is_ignored: bool = False
    """Accepted for Atropos files; does nothing."""
    health_check: bool = False
    """Accepted for Atropos files; does nothing: no traffic that costs money."""
    reasoning_effort: Annotated[str | None, AFFECTS_SCORE] = None
    """none, minimal, low, medium, high or xhigh, as the server understands it."""
    max_reasoning_tokens: Annotated[int | None, AFFECTS_SCORE] = Field(
        default=None, ge=1, le=MOST_TOKENS
    )
    """Tokens of reasoning, where the server has such a limit."""
    context_tokens: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """The model's context window; None = what the server says, if it says."""
    path: str | None = None
    """local: a GGUF file; None = the packaged 270M model."""
    threads: int | None = Field(default=None, ge=1, le=MOST_WORKERS)
    """local: CPU threads; None = all cores but one, at most 4."""
    slots: int | None = Field(default=None, ge=1, le=MOST_WORKERS)
    """local: completions computed at the same time; None = 4."""
    prompt_cost_usd_per_mtok: float | None = Field(default=None, ge=0)
    """Price per million prompt tokens, for the cost limit where the server reports no cost."""
    completion_cost_usd_per_mtok: float | None = Field(default=None, ge=0)
    """The same for completion tokens."""

    @field_validator("server_type", mode="before")
    @classmethod
    def _refuse_trl(cls, value: Any) -> Any:
        if value == "trl":
            raise ValueError(
                "trl servers return no logprobs and take no tool schemas; serve the model with "
                "vLLM or SGLang and use server_type vllm or sglang"
            )
        return value

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is not None and not _port_is_sound(value):
            raise ValueError("is not an address such as http://127.0.0.1:8000/v1")
        return value

    @field_validator("api_key", "base_url", mode="before")
    @classmethod
    def _empty_is_unset(cls, value: Any) -> Any:
        """Atropos' defaults are empty strings."""
        return None if value == "" else value


class AgentFields(ConfigModel):
    """Fields shared by ``EnvConfig`` (evaluate) and ``HermesAgentEnvConfig`` (Atropos)."""

    enabled_toolsets: Annotated[list[str] | None, AFFECTS_SCORE] = None
    """Toolsets by name; None = every toolset usable here."""
    disabled_toolsets: Annotated[list[str] | None, AFFECTS_SCORE] = None
    """Subtracted from the enabled ones."""
    distribution: Annotated[str | None, AFFECTS_SCORE] = None
    """Named toolset distribution, sampled once per group; exclusive with enabled_toolsets."""
    max_agent_turns: Annotated[int, AFFECTS_SCORE] = Field(default=30, ge=1, le=MOST)
    """Model calls per rollout."""
    agent_temperature: Annotated[float, AFFECTS_SCORE] = Field(default=1.0, ge=0, le=100)
    """Sampling temperature; 0 = greedy."""
    max_tokens_per_turn: Annotated[int | None, AFFECTS_SCORE] = Field(
        default=None, ge=1, le=MOST_TOKENS
    )
    """Cap on one completion in tokens."""
    system_prompt: Annotated[str | None, AFFECTS_SCORE] = None
    """First message of every conversation; None = none."""
    tool_call_parser: Annotated[str, AFFECTS_SCORE] = "hermes"
    """Parser of raw text; with server_type openai only when set explicitly."""
    extra_body: Annotated[dict[str, Any] | None, AFFECTS_SCORE] = None
    """Extra request fields, e.g. OpenRouter's provider preferences."""
    reasoning_in_history: Annotated[Literal["auto", "keep", "drop"], AFFECTS_SCORE] = "auto"
    """Whether earlier turns' reasoning is sent again; auto = as the provider wants it."""
    parallel_tool_calls: Annotated[bool, AFFECTS_SCORE] = False
    """Run read-only calls of one turn together."""
    max_invalid_calls: Annotated[int, AFFECTS_SCORE] = Field(default=3, ge=1, le=MOST)
    """Turns in a row with only malformed calls before the rollout ends."""
    max_calls_per_turn: Annotated[int, AFFECTS_SCORE] = Field(default=32, ge=1, le=MOST)
    """Tool calls of one turn that are run; the model is told that the others were not."""
    max_cost_usd: Annotated[float | None, AFFECTS_SCORE] = Field(default=None, gt=0, le=MOST)
    """Cost limit of one rollout."""

    terminal_backend: Annotated[str, AFFECTS_SCORE] = Field(
        default_factory=lambda: os.environ.get("TERMINAL_ENV") or "local"
    )
    """Where commands run: local, docker, modal, daytona, ssh, singularity. The environment
    variable TERMINAL_ENV gives the default."""
    terminal_timeout: Annotated[int, AFFECTS_SCORE] = Field(default=120, ge=1, le=LONGEST_S)
    """Seconds per command."""
    terminal_lifetime: int = Field(default=3600, ge=1, le=LONGEST_S)
    """Seconds a sandbox may live, for tasks without deadlines; a cap only when set."""
    terminal_image: Annotated[str | None, AFFECTS_SCORE] = None
    """Image of tasks that name none."""
    terminal_network: Annotated[Literal["public", "none"] | None, AFFECTS_SCORE] = None
    """Network of tasks that do not say; None = the backend's default."""
    terminal_cpus: Annotated[float | None, AFFECTS_SCORE] = Field(
        default=None, gt=0, le=MOST_WORKERS
    )
    """Cores of tasks that do not say; None = no limit."""
    terminal_memory_mb: Annotated[int | None, AFFECTS_SCORE] = Field(
        default=None, gt=0, le=MOST_MEMORY_MB
    )
    """Memory in MiB of tasks that do not say; None = the backend's default."""
    force_build: Annotated[bool, AFFECTS_SCORE] = False
    """Build images from Dockerfiles although tasks name prebuilt ones."""
    backend_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the backend, e.g. {"local_isolation": "bwrap"}."""
    processes_at_reward: Annotated[ProcessesAtReward, AFFECTS_SCORE] = ProcessesAtReward.KEEP
    """keep: a server that the agent left running is there for the reward. kill: it is not."""
    sync_reward: bool = False
    """Run compute_reward in a thread with a blocking context."""

    dataset_name: Annotated[str | None, AFFECTS_SCORE] = None
    """Data set on the hub, or a local file or directory; None = the task set's own."""
    dataset_split: Annotated[str, AFFECTS_SCORE] = "train"
    """Split of the data set."""
    prompt_field: Annotated[str, AFFECTS_SCORE] = "prompt"
    """Column that holds the prompt."""

    task_timeout: Annotated[float | None, AFFECTS_SCORE] = Field(default=None, gt=0, le=LONGEST_S)
    """Cap on a task's agent deadline in seconds; None = the task's own, else 1800."""
    test_timeout: Annotated[float | None, AFFECTS_SCORE] = Field(default=None, gt=0, le=LONGEST_S)
    """Cap on a task's reward deadline in seconds; None = the task's own, else 600."""
    setup_timeout: float = Field(default=600.0, gt=0, le=LONGEST_S)
    """Seconds for image and sandbox start of tasks that say nothing."""

    max_running_sandboxes: int = Field(default=128, ge=1, le=MOST)
    """Sandboxes alive at once."""
    max_starting_sandboxes: int | None = Field(default=None, ge=1, le=MOST)
    """Sandboxes being started at once; None = the backend's own limit."""
    max_model_calls: int = Field(default=256, ge=1, le=MOST)
    """Model calls in flight per endpoint."""
    rollout_retries: int = Field(default=2, ge=0, le=MOST)
    """Fresh attempts after an infrastructure failure."""
    tool_pool_size: int = Field(default=128, ge=1, le=MOST_WORKERS)
    """Threads of the legacy shim in total."""
    legacy_workers: int = Field(default=2, ge=0, le=MOST_WORKERS)
    """Worker processes of the legacy shim; 0 = threads in this process."""
    legacy_python: str | None = None
    """Interpreter of the workers, one that has hermes-agent; None = this one. It need not have
    hermes_rl: an environment of its own keeps hermes-agent's pinned packages apart from yours."""
    legacy_home: Annotated[str | None, AFFECTS_SCORE] = None
    """Directory whose config.yaml and skills hermes-agent's tools see; None = neither."""


class AtroposFields(ConfigModel):
    """The rest of Atropos' ``BaseEnvConfig``: for ``serve`` and ``process``.

    ``evaluate`` accepts them, so that one YAML file serves all commands, and does nothing with
    most of them: it logs to Weights & Biases where ``use_wandb`` was set.
    """

    group_size: int = 4
    """Rollouts per group."""
    max_num_workers: int = -1
    """Groups at once; -1 = max_num_workers_per_node times the number of servers."""
    max_num_workers_per_node: int = 8
    """Groups at once per server."""
    steps_per_eval: int = 100
    """Training steps between evaluations."""
    eval_handling: Literal["STOP_TRAIN", "LIMIT_TRAIN", "NONE"] = "STOP_TRAIN"
    """What training rollouts do during an evaluation."""
    eval_limit_ratio: float = 0.5
    """Share of training workers that LIMIT_TRAIN leaves."""
    inference_weight: float = 1.0
    """Weight of this environment beside others."""
    batch_size: int = -1
    """The trainer's batch size."""
    max_batches_offpolicy: int = 3
    """Batches in the trainer's queue before generation pauses."""
    tokenizer_name: str = "NousResearch/DeepHermes-3-Llama-3-3B-Preview"
    """Set, it makes tokens of rollouts that have no exact ones; ``none`` = as if not set."""
    use_wandb: bool = True
    """Log to Weights & Biases."""
    rollout_server_url: str = "http://localhost:8000"
    """Address of the trajectory API."""
    total_steps: int = 1000
    """Steps to serve, or groups to process."""
    wandb_name: str | None = None
    """Name of the wandb run."""
    num_rollouts_to_keep: int = 32
    """Rollouts shown in wandb."""
    num_rollouts_per_group_for_logging: int = 1
    """Rollouts of a group shown in wandb; -1 = all."""
    ensure_scores_are_not_same: bool = True
    """Drop groups whose scores are all equal."""
    data_path_to_save_groups: str | None = None
    """JSONL file of scored groups."""
    min_items_sent_before_logging: int = 2
    """Groups to send before a wandb step is logged."""
    include_messages: bool = False
    """Send the messages with each group."""
    min_batch_allocation: float | None = None
    """Least share of a batch."""
    worker_timeout: float = 600
    """Seconds per group."""
    custom_thinking_prompt: str | None = None
    """Unused by Atropos itself."""


class SelectionFields(ConfigModel):
    """Which tasks run, how often, and from which seed."""

    attempts: Annotated[int, AFFECTS_SCORE] = Field(default=1, ge=1, le=MOST_ROLLOUTS)
    """Rollouts per task."""
    seed: Annotated[int, AFFECTS_SCORE] = 0
    """Seeds sampling and generated tasks."""
    task_filter: Annotated[list[str] | None, AFFECTS_SCORE] = None
    """Tasks to run: ids, globs, or key=glob on a task's metadata (split=train); None = all."""
    skip_tasks: Annotated[list[str] | None, AFFECTS_SCORE] = None
    """Tasks to leave out, written as in task_filter."""


_ATROPOS_RANGES: dict[str, tuple[float, float]] = {
    "group_size": (1, MOST_WORKERS),
    "max_num_workers": (-1, MOST_WORKERS),
    "max_num_workers_per_node": (1, MOST_WORKERS),
    "steps_per_eval": (-1, MOST),
    "eval_limit_ratio": (0, 1),
    "inference_weight": (0, MOST),
    "batch_size": (-1, MOST),
    "max_batches_offpolicy": (1, MOST),
    "total_steps": (-1, MOST),
    "num_rollouts_to_keep": (0, MOST),
    "num_rollouts_per_group_for_logging": (-1, MOST),
    "min_items_sent_before_logging": (0, MOST),
    "min_batch_allocation": (0, 1),
    "worker_timeout": (0, LONGEST_S),
}
"""Least and greatest values of Atropos' fields, wherever they are declared."""


class TrainingFields(ConfigModel):
    """What ``serve`` and ``process`` do with groups, beyond Atropos' own fields."""

    group_failures: Literal["retry", "drop"] = "retry"
    """A rollout of a group that is errored: run another in its place, or drop the group."""
    fork_policy: Literal["longest", "last", "drop"] = "longest"
    """Which token sequence of a forked rollout is trained on."""
    resend_on_restart: bool = False
    """Send again what a restarted trajectory API had taken but not handed out."""
    api_wait_s: float = Field(default=300.0, ge=0, le=LONGEST_S)
    """serve: seconds for which the trajectory API may be away before the run ends."""
    jsonl_rows: Literal["group", "trajectory"] = "group"
    """process: one line per group, or one per trajectory."""

    @field_validator(*_ATROPOS_RANGES, check_fields=False)
    @classmethod
    def _is_in_range(cls, value: float | None, info: ValidationInfo) -> float | None:
        least, greatest = _ATROPOS_RANGES[info.field_name or ""]
        if value is not None and not least <= value <= greatest:
            raise ValueError(f"must lie between {least} and {greatest}")
        return value

    @field_validator("rollout_server_url", check_fields=False)
    @classmethod
    def _is_trajectory_api(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")) or not _port_is_sound(value):
            raise ValueError("must be an address such as http://localhost:8000")
        return value

    @field_validator("max_num_workers", check_fields=False)
    @classmethod
    def _has_workers(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 workers would wait for ever; -1 stands for the default")
        return value


class EnvConfig(AgentFields, SelectionFields, TrainingFields, AtroposFields):
    """Configuration of ``evaluate``; needs no Atropos, reads Atropos' YAML files."""

    max_token_length: Annotated[int | None, AFFECTS_SCORE] = Field(
        default=None, ge=1, le=MOST_TOKENS
    )
    """Tokens of one sequence, prompt included; None = the model's context."""
    thinking_mode: Annotated[bool, AFFECTS_SCORE] = False
    """Ask the server for reasoning (extra_body {"reasoning": {"enabled": true}})."""
    reasoning_effort: Annotated[str | None, AFFECTS_SCORE] = None
    """Default of every server's reasoning_effort."""
    max_reasoning_tokens: Annotated[int | None, AFFECTS_SCORE] = Field(
        default=None, ge=1, le=MOST_TOKENS
    )
    """Default of every server's max_reasoning_tokens."""
    max_eval_workers: int = Field(default=16, ge=1, le=MOST_WORKERS)
    """Rollouts running at once in evaluate."""
    data_dir_to_save_evals: str | None = None
    """Run directory; None = runs/<task set>-<time>."""

    @model_validator(mode="after")
    def _one_choice_of_tools(self) -> Self:
        if self.distribution is not None and self.enabled_toolsets is not None:
            raise ValueError("set distribution or enabled_toolsets, not both")
        return self
