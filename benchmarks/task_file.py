"""``task.toml`` of a task in Terminal-Bench layout: the fields, their defaults, their checks.

Field names and defaults are those of Harbor 0.26 (schema 1.4); the older spellings ``version``,
``memory``, ``storage`` and ``allow_internet`` are read too. A field that would change what the
task is, and that this loader cannot honour, is an error, never ignored.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from hermes_rl.bounds import LONGEST_S, MOST, MOST_MEMORY_MB, MOST_WORKERS, shown
from hermes_rl.errors import TaskError

__all__ = [
    "CREDENTIALS",
    "ArtifactEntry",
    "CollectEntry",
    "TaskFile",
    "fill_templates",
    "read_task_file",
]

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(?:i?B)?\Z", re.IGNORECASE)
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}
_TEMPLATE = re.compile(r"\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")

CREDENTIALS = frozenset(
    {
        "ANTHROPIC_API_KEY",
        "DAYTONA_API_KEY",
        "HF_TOKEN",
        "MODAL_TOKEN_ID",
        "MODAL_TOKEN_SECRET",
        "OPENAI_API_KEY",
        "OPENROUTER_API_KEY",
        "TINKER_API_KEY",
        "WANDB_API_KEY",
    }
)
"""Variables that a task may not ask for: the model's and the services' keys stay on the host."""


def _mebibytes(value: Any) -> Any:
    """Turn ``"2G"`` into 2048."""
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value.strip())
    if match is None:
        raise ValueError('write a size such as "512M" or "2G"')
    return max(1, round(float(match[1]) * _MIB[match[2].upper()]))


def _unsupported(explanation: str) -> AfterValidator:
    def refuse(value: Any) -> Any:
        if value:
            raise ValueError(explanation)
        return value

    return AfterValidator(refuse)


Seconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
Environment = dict[str, str]
User = Annotated[str | None, BeforeValidator(lambda v: str(v) if isinstance(v, int) else v)]
NetworkMode = Literal["public", "no-network"]
PhaseNetwork = Annotated[str | None, _unsupported("a network of one phase only is not supported")]


Service = Annotated[str | None, _unsupported("services of compose files are not supported")]


def _with_source(value: Any) -> Any:
    return {"source": value} if isinstance(value, str) else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class AgentSection(_Section):
    """``[agent]``."""

    timeout_sec: Seconds | None = None
    user: User = None
    network_mode: PhaseNetwork = None
    allowed_hosts: Annotated[list[str], _unsupported("host lists are not supported")] = []


class CollectEntry(_Section):
    """One of ``[[verifier.collect]]``."""

    command: str
    timeout_sec: Seconds = 60.0
    user: User = None
    service: Service = None


class ArtifactEntry(_Section):
    """One of ``artifacts``: a path as text, or a table."""

    source: Annotated[str, Field(pattern=r"\A/")]
    destination: str = ""
    exclude: list[str] = []
    service: Service = None


class VerifierSection(_Section):
    """``[verifier]``."""

    timeout_sec: Seconds = 600.0
    env: Environment = {}
    user: User = None
    network_mode: PhaseNetwork = None
    allowed_hosts: Annotated[list[str], _unsupported("host lists are not supported")] = []
    environment_mode: Literal["shared"] = "shared"
    collect: list[CollectEntry] = []


class HealthCheckSection(_Section):
    """``[environment.healthcheck]``."""

    command: str
    interval_sec: Seconds = Field(default=5.0)
    timeout_sec: Seconds = Field(default=30.0)
    start_period_sec: float = Field(default=0.0, ge=0, le=LONGEST_S)
    start_interval_sec: Seconds = Field(default=5.0)
    retries: int = Field(default=3, ge=1, le=MOST)


class EnvironmentSection(_Section):
    """``[environment]``."""

    docker_image: str | None = None
    build_timeout_sec: Seconds = 600.0
    cpus: Annotated[float, Field(gt=0, le=MOST_WORKERS)] | None = None
    memory_mb: Annotated[int, Field(gt=0, le=MOST_MEMORY_MB)] | None = None
    memory: Annotated[int | None, BeforeValidator(_mebibytes)] = None
    storage_mb: int | None = None
    storage: Annotated[int | None, BeforeValidator(_mebibytes)] = None
    gpus: Annotated[int, Field(ge=0, le=MOST_WORKERS)] | None = None
    gpu_types: list[str] | None = None
    tpu: Annotated[Any, _unsupported("TPUs are not supported")] = None
    env: Environment = {}
    workdir: str | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: Annotated[list[str], _unsupported("host lists are not supported")] = []
    allow_internet: bool | None = None
    os: Literal["linux"] = "linux"
    healthcheck: HealthCheckSection | None = None
    mcp_servers: Annotated[list[Any], _unsupported("MCP servers are not supported")] = []
    skills_dir: Annotated[str | None, _unsupported("skills are not supported")] = None

    @property
    def memory_limit_mb(self) -> int | None:
        """MiB, from either spelling."""
        return self.memory_mb if self.memory_mb is not None else self.memory

    @property
    def network(self) -> Literal["public", "none"] | None:
        """The sandbox's network; None where the task does not say."""
        mode = self.network_mode
        if mode is None and self.allow_internet is not None:
            mode = "public" if self.allow_internet else "no-network"
        return None if mode is None else ("public" if mode == "public" else "none")


class SolutionSection(_Section):
    """``[solution]``."""

    env: Environment = {}


class TaskFile(_Section):
    """All of ``task.toml``."""

    schema_version: str | float | None = None
    version: str | float | None = None
    task: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    agent: AgentSection = AgentSection()
    verifier: VerifierSection = VerifierSection()
    environment: EnvironmentSection = EnvironmentSection()
    solution: SolutionSection = SolutionSection()
    artifacts: list[Annotated[ArtifactEntry, BeforeValidator(_with_source)]] = []
    source: str | None = None
    steps: Annotated[list[Any], _unsupported("multi-step tasks are not supported")] = []
    multi_step_reward_strategy: str | None = None


def read_task_file(path: Path) -> TaskFile:
    """Read and check a ``task.toml``.

    Raises:
        TaskError: It cannot be read, is no TOML, or a field is wrong; names file and field.
    """
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}.") from error
    except RecursionError:
        raise TaskError(f"{path} is nested too deeply.") from None
    except ValueError as error:  # no TOML, no UTF-8, or an integer of thousands of digits
        raise TaskError(f"{path} is not valid TOML: {error}.") from error
    try:
        return TaskFile.model_validate(content)
    except ValidationError as error:
        raise TaskError("\n".join(_fault(path, fault) for fault in error.errors())) from None


def _fault(path: Path, fault: Mapping[str, Any]) -> str:
    field = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{path}: unknown field {field}."
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{path}, {field}: {message} (it is {shown(fault['input'])})."


def fill_templates(
    env: Mapping[str, str], host: Mapping[str, str], *, where: str
) -> dict[str, str]:
    """Replace ``${NAME}`` and ``${NAME:-default}`` by the host's values.

    Args:
        env: Variables of one section.
        host: The host's environment.
        where: File and section, for errors.

    Raises:
        TaskError: A variable is not set and has no default, or is one of :data:`CREDENTIALS`.
    """
    return {
        name: _TEMPLATE.sub(_filler(host, f"{where}.{name}"), value) for name, value in env.items()
    }


def _filler(host: Mapping[str, str], where: str) -> Callable[[re.Match[str]], str]:
    def fill(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name in CREDENTIALS:
            raise TaskError(f"{where} asks for {name}; credentials never enter a sandbox.")
        value = host.get(name, default)
        if value is None:
            raise TaskError(f"{where} needs the variable {name}, which is not set here.")
        return value

    return fill
