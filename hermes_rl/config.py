"""Configuration models: what can be set, its default and whether it affects scores.

Every model forbids unknown fields: a typo is a :class:`~hermes_rl.errors.ConfigError` that names
the nearest field. A field whose annotation holds :data:`AFFECTS_SCORE` is compared when a run is
resumed; others may change. Command-line flags are ``--env.<field>`` and ``--openai.<field>``.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

__all__ = [
    "AFFECTS_SCORE",
    "AgentFields",
    "EnvConfig",
    "ProcessesAtReward",
    "ServerConfig",
    "ServerType",
]


class _AffectsScore:
    """Marks a field whose change makes scores incomparable."""

    def __repr__(self) -> str:
        return "AFFECTS_SCORE"


AFFECTS_SCORE = _AffectsScore()

ServerType = Literal["openai", "vllm", "sglang", "llamacpp", "local", "scripted", "oracle", "nop"]


class ProcessesAtReward(enum.StrEnum):
    """What happens to the agent's processes before scoring."""

    KEEP = "keep"
    KILL = "kill"


class ServerConfig(BaseModel):
    """One model endpoint. Accepts every field of Atropos' ``APIServerConfig``."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    server_type: Annotated[ServerType, AFFECTS_SCORE] = "openai"
    """openai: any /v1/chat/completions server. vllm, sglang, llamacpp: token-exact on a stock
    server. local: the embedded model. oracle: each task's own solution. nop: does nothing."""
    model_name: Annotated[str, AFFECTS_SCORE] = "default"
    base_url: str | None = None
    """Server address up to and with /v1; None = OpenAI's, or OpenRouter's if its key is set."""
    api_key: SecretStr | None = None
    """None = from the environment: OPENROUTER_API_KEY for openrouter.ai, else OPENAI_API_KEY."""
    tokenizer_name: str | None = None
    """Hugging Face tokenizer for token-exact clients; None = the model's."""
    timeout: int = 1200
    """Seconds one request may take, all of it."""
    num_max_requests_at_once: int = 512
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
    max_reasoning_tokens: Annotated[int | None, AFFECTS_SCORE] = None
    context_tokens: int | None = None
    """The model's context window; None = what the server says, if it says."""
    path: str | None = None
    """local: a GGUF file; None = the packaged 270M model."""
    threads: int | None = None
    """local: CPU threads; None = the number of cores."""
    prompt_cost_usd_per_mtok: float | None = None
    """Price per million prompt tokens, for the cost limit where the server reports no cost."""
    completion_cost_usd_per_mtok: float | None = None


class AgentFields(BaseModel):
    """Fields shared by ``EnvConfig`` (evaluate) and ``HermesAgentEnvConfig`` (Atropos)."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    enabled_toolsets: Annotated[list[str] | None, AFFECTS_SCORE] = None
    """Toolsets by name; None = every toolset usable here."""
    disabled_toolsets: Annotated[list[str] | None, AFFECTS_SCORE] = None
    """Subtracted from the enabled ones."""
    distribution: Annotated[str | None, AFFECTS_SCORE] = None
    """Named toolset distribution, sampled once per group; exclusive with enabled_toolsets."""
    max_agent_turns: Annotated[int, AFFECTS_SCORE] = Field(default=30, ge=1)
    """Model calls per rollout."""
    agent_temperature: Annotated[float, AFFECTS_SCORE] = Field(default=1.0, ge=0)
    max_tokens_per_turn: Annotated[int | None, AFFECTS_SCORE] = Field(default=None, ge=1)
    """Cap on one completion in tokens."""
    system_prompt: Annotated[str | None, AFFECTS_SCORE] = None
    tool_call_parser: Annotated[str, AFFECTS_SCORE] = "hermes"
    """Parser of raw text; with server_type openai only when set explicitly."""
    extra_body: Annotated[dict[str, Any] | None, AFFECTS_SCORE] = None
    """Extra request fields, e.g. OpenRouter's provider preferences."""
    reasoning_in_history: Annotated[Literal["auto", "keep", "drop"], AFFECTS_SCORE] = "auto"
    parallel_tool_calls: Annotated[bool, AFFECTS_SCORE] = False
    """Run read-only calls of one turn together."""
    max_invalid_calls: Annotated[int, AFFECTS_SCORE] = Field(default=3, ge=1)
    """Turns in a row with only malformed calls before the rollout ends."""
    max_cost_usd: Annotated[float | None, AFFECTS_SCORE] = Field(default=None, gt=0)
    """Cost limit of one rollout."""

    terminal_backend: Annotated[str, AFFECTS_SCORE] = "local"
    """Where commands run: local, docker, modal, daytona, ssh, singularity. The environment
    variable TERMINAL_ENV is its default."""
    terminal_timeout: Annotated[int, AFFECTS_SCORE] = Field(default=120, ge=1)
    """Seconds per command."""
    terminal_lifetime: int = Field(default=3600, ge=1)
    """Seconds a sandbox may live, for tasks without deadlines; a cap only when set."""
    terminal_image: Annotated[str | None, AFFECTS_SCORE] = None
    """Image of tasks that name none."""
    terminal_network: Annotated[Literal["public", "none"] | None, AFFECTS_SCORE] = None
    terminal_cpus: Annotated[float | None, AFFECTS_SCORE] = Field(default=None, gt=0)
    terminal_memory_mb: Annotated[int | None, AFFECTS_SCORE] = Field(default=None, gt=0)
    backend_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the backend, e.g. {"local_isolation": "bwrap"}."""
    processes_at_reward: Annotated[ProcessesAtReward, AFFECTS_SCORE] = ProcessesAtReward.KEEP
    sync_reward: bool = False
    """Run compute_reward in a thread with a blocking context."""

    task_timeout: Annotated[float | None, AFFECTS_SCORE] = Field(default=None, gt=0)
    """Cap on a task's agent deadline in seconds; None = the task's own, else 1800."""
    test_timeout: Annotated[float | None, AFFECTS_SCORE] = Field(default=None, gt=0)
    """Cap on a task's reward deadline in seconds; None = the task's own, else 600."""
    setup_timeout: float = Field(default=600.0, gt=0)
    """Seconds for image and sandbox start of tasks that say nothing."""

    max_running_sandboxes: int = Field(default=128, ge=1)
    max_starting_sandboxes: int | None = Field(default=None, ge=1)
    """None = the backend's own limit."""
    max_model_calls: int = Field(default=256, ge=1)
    """Model calls in flight per endpoint."""
    rollout_retries: int = Field(default=2, ge=0)
    """Fresh attempts after an infrastructure failure."""
    tool_pool_size: int = Field(default=128, ge=1)
    """Threads of the legacy shim in total."""
    legacy_workers: int = Field(default=2, ge=0)
    """Worker processes of the legacy shim; 0 = threads in this process."""


class EnvConfig(AgentFields):
    """Configuration of ``evaluate``; needs no Atropos."""

    max_token_length: Annotated[int | None, AFFECTS_SCORE] = Field(default=None, ge=1)
    """Tokens of one sequence, prompt included; None = the model's context."""
    max_eval_workers: int = Field(default=16, ge=1)
    """Rollouts running at once in evaluate."""
    attempts: Annotated[int, AFFECTS_SCORE] = Field(default=1, ge=1)
    """Rollouts per task."""
    seed: Annotated[int, AFFECTS_SCORE] = 0
    """Seeds sampling and generated tasks."""
    task_filter: Annotated[list[str] | None, AFFECTS_SCORE] = None
    """Task ids or globs to run; None = all."""
    skip_tasks: Annotated[list[str] | None, AFFECTS_SCORE] = None
    """Task ids or globs to leave out."""
    data_dir_to_save_evals: str | None = None
    """Run directory; None = runs/<task set>-<time>."""
