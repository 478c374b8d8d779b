"""Tasks and task sets: what an agent is asked to do and how the result is scored.

A set of tasks is written once, here, at the level of the engine: nothing in this module knows
Atropos. ``evaluate`` needs nothing else. Task sets are found by name through the entry-point
group ``hermes_rl.tasks`` (a class or a callable without required arguments).

The smallest useful task set::

    @dataclass
    class Greeting:
        id: str = "greeting"
        prompt: str = "Write 'hello' to ~/hello.txt"

        async def reward(self, result, ctx):
            seen = await ctx.read_file("~/hello.txt")
            return 1.0 if seen.get("content", "").strip() == "hello" else 0.0

    class Greetings:
        name = "greetings"

        async def load(self):
            return [Greeting()]

Optional attributes of a task and their defaults are read through :func:`describe`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hermes_rl.bounds import LONGEST_S, MOST, MOST_MEMORY_MB, MOST_WORKERS, value_fault
from hermes_rl.errors import TaskError
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.types import AgentResult, Message, Reward

_SECONDS = ("setup_s", "agent_s", "reward_s")

if TYPE_CHECKING:
    from hermes_rl.context import ToolContext

__all__ = [
    "Deadlines",
    "MalformedTask",
    "MalformedTasks",
    "Solution",
    "Task",
    "TaskDescription",
    "TaskSet",
    "describe",
    "normalise_reward",
]


@dataclass(slots=True, frozen=True, kw_only=True)
class Deadlines:
    """Wall-clock limits of one rollout in seconds; None = the configuration's.

    Attributes:
        setup_s: Image, start, health check, uploads.
        agent_s: The agent; ``task_timeout`` caps it.
        reward_s: The reward's own work; ``test_timeout`` caps it. Reward code finds the result
            as ``ctx.limit_s``.
        reward_margin_s: Added to that for what surrounds the work (uploads, reading results), so
            that reward code which keeps its limit can say so itself.
    """

    setup_s: float | None = None
    agent_s: float | None = None
    reward_s: float | None = None
    reward_margin_s: float = 0.0


@dataclass(slots=True, frozen=True, kw_only=True)
class Solution:
    """A task's own solution, run by the ``oracle`` model.

    Attributes:
        command: Shell command that solves the task.
        files: Directory whose contents are uploaded to ``/solution`` first, for every user to
            read and run.
        env: Extra environment of the command.
    """

    command: str
    files: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class Task(Protocol):
    """One thing to do. ``id`` and ``prompt`` may be plain attributes or properties."""

    @property
    def id(self) -> str:
        """Unique within the task set; stable between runs."""
        ...

    @property
    def prompt(self) -> str | Sequence[Message]:
        """The user message, or the opening messages."""
        ...

    async def reward(self, result: AgentResult, ctx: ToolContext) -> float | Reward:
        """Score the result in the agent's own sandbox.

        Raises:
            RewardError: Scoring itself failed; the rollout is errored.
        """
        ...


class TaskSet(Protocol):
    """A named collection of tasks.

    ``async def doctor(self)`` that returns :class:`~hermes_rl.sandbox.Check` objects, if there is
    one, says what the tasks need on this machine and changes nothing; see ``hermes_rl doctor``.
    """

    @property
    def name(self) -> str:
        """Registered name."""
        ...

    async def load(self) -> Sequence[Task]:
        """Load all tasks, off the event loop where that takes time.

        Raises:
            TaskError: A task is malformed; names it.
        """
        ...


@dataclass(slots=True, frozen=True, kw_only=True)
class TaskDescription:
    """A task's attributes with the defaults of those it does not have.

    Attributes:
        id: Unique name.
        messages: Opening messages without the system prompt.
        sandbox: Its sandbox.
        deadlines: Its own limits.
        metadata: JSON-able facts: category, difficulty, digest ...
        solution: For the oracle, None if it has none.
        agent_user: User of the agent's commands, None = the sandbox's.
        sync_reward: Its reward code blocks: it runs in a thread with a blocking context. Plain
            functions always do.
        setup: ``async setup(ctx)`` prepares the sandbox before the agent starts: uploads,
            services. Its calls are awaited like those of the reward.
        compact: Called before each model call with the messages that the model sees; returns
            them, or a new shorter list. The result keeps the whole conversation.
    """

    id: str
    messages: tuple[Message, ...]
    sandbox: SandboxSpec
    deadlines: Deadlines
    metadata: Mapping[str, Any]
    solution: Solution | None
    agent_user: str | None
    sync_reward: bool = False
    setup: Callable[[ToolContext], Awaitable[None]] | None = None
    compact: Callable[[list[Message]], list[Message]] | None = None


def describe(task: Task) -> TaskDescription:
    """Read a task's required and optional attributes.

    Optional ones: ``sandbox`` (:class:`SandboxSpec`), ``deadlines``, ``metadata``, ``solution``,
    ``agent_user``, ``sync_reward``, ``setup``, ``compact``.

    Raises:
        TaskError: ``id`` or ``prompt`` is empty or of the wrong type, or there is no ``reward``.
    """
    lacking = [name for name in ("id", "prompt") if not hasattr(task, name)]
    if lacking:
        raise TaskError(f"{task!r} is no task: it has no {' and no '.join(lacking)}.")
    prompt = task.prompt
    if not task.id or not isinstance(task.id, str):
        raise TaskError(f"{task!r} needs an 'id': a non-empty string, unique in its task set.")
    if not prompt:
        raise TaskError(f"Task {task.id!r} has no prompt.")
    if not callable(getattr(task, "reward", None)):
        raise TaskError(f"Task {task.id!r} has no reward: 'async def reward(self, result, ctx)'.")
    if not isinstance(prompt, Sequence):
        raise TaskError(f"Task {task.id!r}: {_PROMPT}")
    messages: tuple[Message, ...] = (
        ({"role": "user", "content": prompt},) if isinstance(prompt, str) else tuple(prompt)
    )
    deadlines = getattr(task, "deadlines", None) or Deadlines()
    sandbox = getattr(task, "sandbox", None) or SandboxSpec()
    metadata = getattr(task, "metadata", None) or {}
    _check_limits(task.id, deadlines, sandbox)
    if not all(isinstance(message, Mapping) for message in messages):
        raise TaskError(f"Task {task.id!r}: {_PROMPT}")
    if not all(isinstance(key, str) for key in metadata):
        raise TaskError(f"Task {task.id!r}: the names in its metadata must be text.")
    if (fault := value_fault([task.id, prompt, metadata])) is not None:
        raise TaskError(f"Task {task.id!a}: its id, prompt or metadata {fault}.")
    return TaskDescription(
        id=task.id,
        messages=messages,
        sandbox=sandbox,
        deadlines=deadlines,
        metadata=metadata,
        solution=getattr(task, "solution", None),
        agent_user=getattr(task, "agent_user", None),
        sync_reward=bool(getattr(task, "sync_reward", False)),
        setup=getattr(task, "setup", None),
        compact=getattr(task, "compact", None),
    )


def _check_limits(task_id: str, deadlines: Deadlines, sandbox: SandboxSpec) -> None:
    """Refuse limits that no clock or machine could keep."""
    limits = {
        **{f"deadlines.{name}": (getattr(deadlines, name), LONGEST_S) for name in _SECONDS},
        "sandbox.build_timeout_s": (sandbox.build_timeout_s, LONGEST_S),
        "sandbox.start_timeout_s": (sandbox.start_timeout_s, LONGEST_S),
        "sandbox.lease_s": (sandbox.lease_s, LONGEST_S),
        "sandbox.cpus": (sandbox.cpus, MOST_WORKERS),
        "sandbox.memory_mb": (sandbox.memory_mb, MOST_MEMORY_MB),
        "sandbox.pids": (sandbox.pids, MOST),
    }
    for name, (value, greatest) in limits.items():
        if value is not None and not (isinstance(value, int | float) and 0 < value <= greatest):
            raise TaskError(
                f"Task {task_id!r}: {name} is {value!r}; give a number above 0 and at most "
                f"{greatest}."
            )
    margin_s = deadlines.reward_margin_s
    if not (isinstance(margin_s, int | float) and 0 <= margin_s <= LONGEST_S):
        raise TaskError(f"Task {task_id!r}: deadlines.reward_margin_s is no length of time.")


def normalise_reward(value: float | Reward, task_id: str) -> Reward:
    """Return ``value`` as a finite :class:`Reward`.

    Raises:
        TaskError: It is no finite number.
    """
    reward = value if isinstance(value, Reward) else None
    number = reward.value if reward else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise TaskError(f"Task {task_id!r} returned {value!r} as its reward; give a finite number.")
    return reward or Reward(float(number))


_PROMPT = "its prompt must be text or a list of messages (dicts)."
FAULTS_SHOWN = 20
"""Of malformed tasks: a data set in the wrong form has as many as rows."""


@dataclass(slots=True, frozen=True, kw_only=True)
class MalformedTask:
    """Stands for a task that cannot be loaded, until it is known whether it is wanted.

    Attributes:
        id: Its id.
        fault: What is wrong with it, with file and field.
        metadata: As far as it can be read.
    """

    id: str
    fault: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    prompt: str = "(malformed)"

    async def reward(self, result: AgentResult, ctx: ToolContext) -> float:
        """Raise: it cannot be played."""
        raise TaskError(self.fault)


class MalformedTasks(TaskError):
    """Some tasks of a set are malformed; raised by ``load()``.

    A run that wants none of them goes on with the others.

    Attributes:
        tasks: The others.
        malformed: Those that cannot be loaded.
    """

    def __init__(
        self, message: str, *, tasks: Sequence[Task] = (), malformed: Sequence[MalformedTask] = ()
    ) -> None:
        super().__init__(message)
        self.tasks = tuple(tasks)
        self.malformed = tuple(malformed)

    @classmethod
    def among(cls, tasks: Sequence[Task], malformed: Sequence[MalformedTask]) -> MalformedTasks:
        """Return the error that tells the faults."""
        more = len(malformed) - FAULTS_SHOWN
        shown = [task.fault for task in malformed[:FAULTS_SHOWN]]
        message = "\n".join([*shown, *([f"... and {more} more"] if more > 0 else [])])
        return cls(message, tasks=tasks, malformed=malformed)
