"""What one rollout will be: a task's own wishes and the configuration, resolved before it starts.

Deadlines: a task's own, capped by ``task_timeout`` (agent) and ``test_timeout`` (reward); where
it has none, that cap, else the default. The sandbox's lease is the sum of the three phases plus a
margin, so that no lease ends under a running phase, plus an allowance for waiting: the agent's
deadline stands still while it waits for a permit or a retry of the model. ``terminal_lifetime`` is
the lease of tasks without deadlines of their own, and a cap only where the user set it: it takes
from the allowance first, and a cap below a task's need is an error that lists the tasks, found by
:func:`plan_run` before anything is spent.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import anyio.lowlevel

from hermes_rl.config import AgentFields
from hermes_rl.errors import ConfigError, TaskError
from hermes_rl.sandbox import Backend, Capability, SandboxSpec
from hermes_rl.tasks import Deadlines, Task, TaskDescription, describe
from hermes_rl.tools import DISTRIBUTIONS, Availability, resolve_toolsets, sample_distribution
from hermes_rl.types import Message

__all__ = [
    "RolloutPlan",
    "ToolChoice",
    "check_lifetimes",
    "missing_capabilities",
    "plan_rollout",
    "plan_run",
    "rollout_seed",
    "skip_reason",
]

DEFAULT_AGENT_S = 1800.0
"""Agent deadline of tasks without one, as the old environments had it."""
DEFAULT_REWARD_S = 600.0
"""Reward deadline of tasks without one."""
LEASE_MARGIN_S = 60.0
"""Added to the phases: killing a call, closing a session and teardown take up to half of it."""
WAITING_ALLOWANCE_S = 1800.0
"""As long as one model call may be retried."""
_PLANS_PER_SLICE = 100
"""Plans made between two steps of the event loop: about 2 ms."""
_TASKS_NAMED = 10
"""Tasks listed in an error before it says how many more there are."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RolloutPlan:
    """One task, ready to run.

    Attributes:
        task: The task itself.
        description: Its attributes.
        messages: Opening messages, system prompt first.
        spec: Its sandbox: lease, labels and the configuration's defaults filled in.
        tool_names: The agent's tools; all attempts of the task have the same.
        setup_s: Deadline of image, start, health check and uploads.
        agent_s: Deadline of the agent.
        reward_s: Deadline of the reward, its margin included.
        reward_limit_s: The same without the margin.
        waiting_s: Waiting that the agent's deadline does not count.
    """

    task: Task
    description: TaskDescription
    messages: tuple[Message, ...]
    spec: SandboxSpec
    tool_names: tuple[str, ...]
    setup_s: float
    agent_s: float
    reward_s: float
    reward_limit_s: float
    waiting_s: float = 0.0

    @property
    def needed_lease_s(self) -> float:
        """Seconds that the sandbox must live for all phases to reach their deadlines."""
        return self.setup_s + self.agent_s + self.reward_s + LEASE_MARGIN_S


def _capped(own_s: float | None, cap_s: float | None, default_s: float) -> float:
    if own_s is None:
        return default_s if cap_s is None else cap_s
    return own_s if cap_s is None else min(own_s, cap_s)


def _sandbox(config: AgentFields, task_id: str, own: SandboxSpec, start_s: float) -> SandboxSpec:
    """Return the task's spec with the configuration's defaults where it says nothing."""
    has_image = own.image is not None or own.dockerfile_dir is not None
    return replace(
        own,
        image=own.image if has_image else config.terminal_image,
        cpus=config.terminal_cpus if own.cpus is None else own.cpus,
        memory_mb=config.terminal_memory_mb if own.memory_mb is None else own.memory_mb,
        network=config.terminal_network if own.network is None else own.network,
        start_timeout_s=start_s,
        labels={"task": task_id, **own.labels},
    )


class ToolChoice:
    """Which tools the tasks of a run get: the configured toolsets, or a draw per task.

    Args:
        config: The run's configuration.
        availability: What can run here beside the native tools; None = nothing.

    Raises:
        UnknownName: A toolset or distribution does not exist.
        ConfigError: A toolset that is named, or that the distribution may draw, is not available.
    """

    def __init__(self, config: AgentFields, availability: Availability | None = None) -> None:
        self._config = config
        self._availability = availability
        self._fixed = self._resolved(config.enabled_toolsets)
        if config.distribution is not None:
            sample_distribution(config.distribution, random.Random(0))
            self._resolved(list(DISTRIBUTIONS[config.distribution]))

    def _resolved(self, enabled: Sequence[str] | None) -> tuple[str, ...]:
        disabled = self._config.disabled_toolsets
        return tuple(resolve_toolsets(enabled, disabled, self._availability))

    def names(self, task_id: str) -> tuple[str, ...]:
        """Return the tools of one task; the same for every attempt and in every run."""
        config = self._config
        if config.distribution is None:
            return self._fixed
        generator = random.Random(f"{getattr(config, 'seed', 0)}/{task_id}")
        return self._resolved(sample_distribution(config.distribution, generator))


def plan_rollout(
    config: AgentFields,
    task: Task,
    tool_names: Sequence[str] | None = None,
    *,
    availability: Availability | None = None,
) -> RolloutPlan:
    """Resolve one task, without :func:`check_lifetimes`.

    Args:
        config: The run's configuration.
        task: The task.
        tool_names: The agent's tools; None = as configured.
        availability: See :class:`ToolChoice`.

    Raises:
        TaskError: The task is malformed.
    """
    description = describe(task)
    if tool_names is None:
        tool_names = ToolChoice(config, availability).names(description.id)
    return _plan(config, task, description, tuple(tool_names))


def _plan(
    config: AgentFields, task: Task, description: TaskDescription, tool_names: tuple[str, ...]
) -> RolloutPlan:
    wanted = description.deadlines
    system = config.system_prompt
    opening: tuple[Message, ...] = ({"role": "system", "content": system},) if system else ()
    setup_s = config.setup_timeout if wanted.setup_s is None else wanted.setup_s
    reward_limit_s = _capped(wanted.reward_s, config.test_timeout, DEFAULT_REWARD_S)
    plan = RolloutPlan(
        task=task,
        description=description,
        messages=opening + description.messages,
        spec=_sandbox(config, description.id, description.sandbox, setup_s),
        tool_names=tool_names,
        setup_s=setup_s,
        agent_s=_capped(wanted.agent_s, config.task_timeout, DEFAULT_AGENT_S),
        reward_s=reward_limit_s + wanted.reward_margin_s,
        reward_limit_s=reward_limit_s,
    )
    return _with_lease(config, plan)


def _with_lease(config: AgentFields, plan: RolloutPlan) -> RolloutPlan:
    needed_s, lifetime_s = plan.needed_lease_s, config.terminal_lifetime
    waiting_s = WAITING_ALLOWANCE_S
    if "terminal_lifetime" in config.model_fields_set:
        waiting_s = min(waiting_s, max(0.0, lifetime_s - needed_s))
    lease_s = needed_s + waiting_s
    if plan.description.deadlines == Deadlines():
        lease_s = max(lease_s, lifetime_s)
    return replace(plan, waiting_s=waiting_s, spec=replace(plan.spec, lease_s=lease_s))


async def plan_run(
    config: AgentFields, tasks: Iterable[Task], *, availability: Availability | None = None
) -> list[RolloutPlan]:
    """Resolve all tasks of a run, without keeping the event loop from its work.

    Raises:
        TaskError: A task is malformed, or an id occurs twice.
        ConfigError: ``terminal_lifetime`` was set below what tasks need (lists them), or a
            toolset is not available.
    """
    plans = []
    for plan in _plans(config, tasks, availability):
        plans.append(plan)
        if len(plans) % _PLANS_PER_SLICE == 0:
            await anyio.lowlevel.checkpoint()
    _check(config, plans)
    return plans


def _plans(
    config: AgentFields, tasks: Iterable[Task], availability: Availability | None
) -> Iterator[RolloutPlan]:
    choice = ToolChoice(config, availability)
    for task in tasks:
        description = describe(task)
        yield _plan(config, task, description, choice.names(description.id))


def _check(config: AgentFields, plans: Sequence[RolloutPlan]) -> None:
    times = Counter(plan.description.id for plan in plans)
    twice = sorted(task_id for task_id, count in times.items() if count > 1)
    if twice:
        raise TaskError(
            f"Task ids must be unique, but {_named(twice)} occur more than once. "
            "Use attempts to run a task several times."
        )
    check_lifetimes(config, plans)


def check_lifetimes(config: AgentFields, plans: Sequence[RolloutPlan]) -> None:
    """Refuse a ``terminal_lifetime`` that was set and is below what tasks need.

    Raises:
        ConfigError: Lists the tasks.
    """
    if "terminal_lifetime" not in config.model_fields_set:
        return
    cap_s = config.terminal_lifetime
    short = [plan for plan in plans if plan.needed_lease_s > cap_s]
    if short:
        need_s = max(plan.needed_lease_s for plan in short)
        raise ConfigError(
            f"terminal_lifetime is {cap_s} s, but {_named([p.description.id for p in short])} "
            f"need up to {need_s:.0f} s (setup + agent + reward + {LEASE_MARGIN_S:.0f} s). Raise "
            "it or leave it out, or lower setup_timeout, task_timeout or test_timeout."
        )


def _named(ids: Sequence[str]) -> str:
    listed = ", ".join(ids[:_TASKS_NAMED])
    more = len(ids) - _TASKS_NAMED
    return f"{listed} and {more} more" if more > 0 else listed


def skip_reason(plan: RolloutPlan, backend: Backend) -> str | None:
    """Return why the task cannot run on this backend, None if it can."""
    known = plan.spec.not_on.get(backend.name)
    if known is not None:
        return f"It cannot run on the backend {backend.name!r}: {known}"
    missing = missing_capabilities(plan, backend.capabilities)
    if missing:
        return f"The backend {backend.name!r} lacks what this task needs: {', '.join(missing)}."
    return None


def missing_capabilities(plan: RolloutPlan, available: Collection[Capability]) -> list[str]:
    """Return what the plan's sandbox needs and the backend lacks, sorted."""
    return sorted(plan.spec.required_capabilities() - frozenset(available))


def rollout_seed(base: int, task_id: str, attempt: int) -> int:
    """Return the sampling seed of one rollout: 31 bits, stable between runs and machines."""
    text = f"{base}\0{task_id}\0{attempt}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big") >> 1
