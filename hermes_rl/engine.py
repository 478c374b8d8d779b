"""The engine: hundreds of rollouts at once, embedded in any asyncio program.

::

    async with RolloutEngine(config, servers) as engine:
        result = await engine.rollout(task)
        async with engine.run(tasks, attempts=4) as results:
            async for result in results:
                print(result.task_id, result.score)

The engine owns a backend, the model clients and one task group. The task that enters it leaves
it; everything else (``start``, ``run``, ``aclose``) may be called from any task of the same event
loop. Nothing runs in the caller's task, so closing the engine never cancels a caller: what waits
for a result gets :class:`~hermes_rl.errors.EngineClosed`.

How it is built: a *keeper* task in the group enters backend and models, waits for the closing
event, ends the activities, and leaves models and backend. Their contexts are therefore entered and
left in one task, whichever task closes the engine.

A failing rollout never disturbs another. No signal handler is installed. Several engines may
live side by side.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from hermes_rl.config import AgentFields, ServerConfig
from hermes_rl.conversation import Clock
from hermes_rl.engine_arguments import check_arguments, check_event_loop
from hermes_rl.errors import ConfigError, EngineClosed, UnknownName
from hermes_rl.foreign_backend import connected
from hermes_rl.legacy.catalog import catalog_of
from hermes_rl.legacy.pool import LegacyTools
from hermes_rl.legacy.settings import LegacySettings
from hermes_rl.model.open import open_model
from hermes_rl.model.protocol import ChatModel
from hermes_rl.parsers import get_parser
from hermes_rl.plan import (
    RolloutPlan,
    ToolChoice,
    check_lifetimes,
    plan_rollout,
    plan_run,
    rollout_seed,
)
from hermes_rl.rollout import Rollout, RolloutResult
from hermes_rl.rollout_site import PerTaskModel, RolloutSite
from hermes_rl.sandbox import Backend, BackendSettings, open_backend
from hermes_rl.stream import Activity, RolloutHandle, RolloutStream
from hermes_rl.tasks import Task
from hermes_rl.tools import NATIVE_TOOLS, Availability
from hermes_rl.types import JSONObject

__all__ = ["RolloutEngine"]

CLOSE_S = 60.0
"""For models and backend to disconnect; a backend removes the sandboxes still there."""


class RolloutEngine:
    """Runs rollouts. Enter it once with ``async with``.

    Args:
        config: Limits and settings; ``EnvConfig`` or any other model with these fields.
        servers: Model endpoints; rollouts are spread over them.
        model: A model to use instead of servers; the caller opens and closes it.
        backend: A backend to use instead of ``config.terminal_backend``; not yet entered, the
            engine enters and leaves it.
        clock: Seconds, monotonic.
        retry_delay_s: Wait before the first retry of a rollout; doubles with each further one.
        artifacts: Says in which directory a rollout (task id, attempt) may leave files; None =
            rollouts keep none.

    Raises:
        ConfigError: An argument is of the wrong kind, or there is not one of servers and model.

    Attributes:
        run_id: Labels every sandbox of this engine.
    """

    def __init__(
        self,
        config: AgentFields,
        servers: Sequence[ServerConfig] | None = None,
        *,
        model: ChatModel | PerTaskModel | None = None,
        backend: Backend | None = None,
        clock: Clock = time.monotonic,
        retry_delay_s: float = 1.0,
        artifacts: Callable[[str, int], Path] | None = None,
    ) -> None:
        check_arguments(config, servers, model, backend)
        self.run_id = uuid.uuid4().hex[:12]
        self._config = config
        self._servers = tuple(servers or ())
        self._model = model
        self._backend = backend
        self._clock = clock
        self._retry_delay_s = retry_delay_s
        self._artifacts = artifacts
        self._site: RolloutSite | None = None
        self._group: TaskGroup | None = None
        self._activities: set[Activity] = set()
        self._activity_ended = anyio.Event()
        self._closing = anyio.Event()
        self._closed = anyio.Event()
        self._close_error: Exception | None = None
        self._entered_by = 0

    @property
    def _open_site(self) -> RolloutSite:
        if self._site is None or self._closing.is_set():
            raise EngineClosed("The engine is not open: use it inside 'async with'.")
        return self._site

    async def __aenter__(self) -> Self:
        """Connect to the backend and open the models.

        Raises:
            BackendUnavailable: What is behind the backend cannot be reached.
            SandboxError: The backend broke; names it.
            ConfigError: A name is unknown, an extra is missing, the engine was entered before, or
                this event loop is not asyncio's.
        """
        if self._group is not None:
            raise ConfigError("An engine can be entered only once; make a new one.")
        check_event_loop()
        self._group = anyio.create_task_group()
        self._entered_by = anyio.get_current_task().id
        await self._group.__aenter__()
        try:
            self._site = await self._group.start(self._keep)
        except BaseException:
            self._closing.set()
            self._closed.set()
            await self._group.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close; see :meth:`aclose`. An exception of the body leaves as it came.

        Raises:
            SandboxError: The backend could not remove what is left, or not disconnect.
            ConfigError: Another task entered it; it is closed nevertheless.
        """
        self._closing.set()
        if self._group is not None:
            if anyio.get_current_task().id != self._entered_by:
                await self._closed.wait()
                raise ConfigError(
                    "The engine was entered in another task, and only that may leave it (it is "
                    "closed now). In a pytest fixture use hermes_rl.testing.hosting.hosted."
                ) from exc
            # Not given the exception: the group would wrap it, and the keeper ends by itself.
            await self._group.__aexit__(None, None, None)
        if self._close_error is not None:
            raise self._close_error from exc

    @property
    def model(self) -> ChatModel | None:
        """The open model; None while the engine is closed and with a model made per task."""
        model = self._site.model if self._site is not None else None
        return model if isinstance(model, ChatModel) else None

    @property
    def availability(self) -> Availability:
        """Which tools can run here beside the native ones; nothing while the engine is closed."""
        legacy = self._site.legacy if self._site is not None else None
        return legacy.catalog.availability if legacy is not None else Availability()

    def tool_schema(self, name: str) -> JSONObject:
        """Return the schema of a tool that can run here, in OpenAI form.

        Raises:
            UnknownName: There is none of this name.
        """
        legacy = self._site.legacy if self._site is not None else None
        others = legacy.catalog.schemas if legacy is not None else {}
        if name in NATIVE_TOOLS:
            return NATIVE_TOOLS[name].schema
        if name not in others:
            raise UnknownName.of("tool", name, [*NATIVE_TOOLS, *others])
        return others[name]

    async def aclose(self) -> None:
        """Tear down every rollout, close models and backend. From any task; idempotent.

        Waiting results raise :class:`~hermes_rl.errors.EngineClosed`. The task that entered the
        engine still has to leave it, which is then immediate.
        """
        self._closing.set()
        if self._group is not None:
            await self._closed.wait()

    async def rollout(
        self, task: Task, *, attempt: int = 0, seed: int | None = None
    ) -> RolloutResult:
        """Run one rollout. Cancelling it tears it down before this returns.

        Args:
            task: What to do.
            attempt: 0-based attempt of this task.
            seed: Sampling seed; None = derived from the configured one, task and attempt.

        Raises:
            TaskError: The task is malformed.
            ConfigError: The configuration cannot work for this task.
            ModelUnauthorized, ModelNotFound: The model cannot be used.
            EngineClosed: The engine is closed.
        """
        handle = self.start(task, attempt=attempt, seed=seed)
        try:
            return await handle.result()
        finally:
            if not handle.is_done:
                await handle.stopped()

    def start(
        self,
        task: Task,
        *,
        attempt: int = 0,
        seed: int | None = None,
        tool_names: Sequence[str] | None = None,
    ) -> RolloutHandle:
        """Start one rollout and return at once; see :meth:`rollout`.

        Args:
            task: What to do.
            attempt: 0-based attempt of this task.
            seed: Sampling seed; None = derived.
            tool_names: The agent's tools, e.g. drawn for a group; None = as configured.
        """
        plan = plan_rollout(self._config, task, tool_names, availability=self.availability)
        check_lifetimes(self._config, [plan])
        handle = RolloutHandle(self._rollout(plan, attempt, seed))
        self._spawn(handle)
        return handle

    def run(
        self,
        tasks: Iterable[Task],
        *,
        attempts: int = 1,
        max_workers: int | None = None,
        skip: Container[tuple[str, int]] = frozenset(),
    ) -> RolloutStream:
        """Return the stream of ``attempts`` rollouts per task, in the order they finish.

        Work is taken attempt by attempt: every task once before any task twice.

        Args:
            tasks: Ids must be unique.
            attempts: Rollouts per task.
            max_workers: Rollouts at once; None = ``max_eval_workers`` where the configuration has
                it, else ``max_running_sandboxes``.
            skip: Pairs (task id, attempt) that are not to run.

        Entering the stream raises what is wrong with the tasks, before anything is spent.

        Raises:
            ConfigError: ``attempts`` or ``max_workers`` is below 1.
        """
        if max_workers is None:
            default = self._config.max_running_sandboxes
            max_workers = getattr(self._config, "max_eval_workers", default)
        if attempts < 1 or max_workers < 1:
            raise ConfigError("attempts and max_workers must be at least 1.")
        return RolloutStream(
            partial(plan_run, self._config, tasks, availability=self.availability),
            attempts=attempts,
            skip=skip,
            max_workers=max_workers,
            spawn=self._spawn,
            rollout=self._rollout,
        )

    def _rollout(self, plan: RolloutPlan, attempt: int, seed: int | None = None) -> Rollout:
        site = self._open_site
        base: int | None = getattr(self._config, "seed", None)
        if seed is None and base is not None:
            seed = rollout_seed(base, plan.description.id, attempt)
        return Rollout(site, plan, attempt=attempt, seed=seed)

    def _spawn(self, activity: Activity) -> None:
        if self._group is None or self._closing.is_set():
            raise EngineClosed("The engine is not open: use it inside 'async with'.")
        self._activities.add(activity)
        self._group.start_soon(self._run_activity, activity)

    async def _run_activity(self, activity: Activity) -> None:
        try:
            await activity.run()
        finally:
            self._activities.discard(activity)
            self._activity_ended.set()

    async def _keep(self, *, task_status: TaskStatus[RolloutSite]) -> None:
        """Hold backend and models open until the engine closes; see the module's docstring."""
        stack = AsyncExitStack()
        try:
            # Entered before what it bounds at the end: backend and models hold scopes of their
            # own for as long as they are open, and scopes must be left in reverse order.
            with anyio.CancelScope() as scope:
                try:
                    task_status.started(await self._open(stack))
                    await self._closing.wait()
                finally:
                    self._closing.set()
                    await self._end_activities()
                    scope.shield = True
                    scope.deadline = anyio.current_time() + CLOSE_S
                    await self._leave(stack)
        finally:
            self._closed.set()

    async def _open(self, stack: AsyncExitStack) -> RolloutSite:
        config = self._config
        catalog = await catalog_of(config)
        ToolChoice(config, catalog.availability)  # Refuses what is not available.
        legacy = LegacyTools(LegacySettings.of(config), catalog)
        await stack.enter_async_context(legacy)
        backend = self._backend
        if backend is None:
            # In a thread: the first use of a backend imports its client library.
            importing = anyio.CapacityLimiter(1)
            backend = await anyio.to_thread.run_sync(
                open_backend, config.terminal_backend, self._backend_settings(), limiter=importing
            )
        await stack.enter_async_context(connected(backend))
        model = self._model
        if model is None:
            model = await stack.enter_async_context(self._open_model())
        return RolloutSite(
            config=config,
            backend=backend,
            model=model,
            running=anyio.CapacityLimiter(config.max_running_sandboxes),
            reward_threads=anyio.CapacityLimiter(config.max_running_sandboxes),
            clock=self._clock,
            retry_delay_s=self._retry_delay_s,
            artifacts=self._artifacts,
            legacy=legacy,
        )

    def _open_model(self) -> AbstractAsyncContextManager[ChatModel]:
        config = self._config
        is_chosen = "tool_call_parser" in config.model_fields_set
        return open_model(
            self._servers,
            max_calls=config.max_model_calls,
            tool_call_parser=get_parser(config.tool_call_parser) if is_chosen else None,
            reasoning_in_history=config.reasoning_in_history,
        )

    def _backend_settings(self) -> BackendSettings:
        return BackendSettings(
            run_id=self.run_id,
            max_starting=self._config.max_starting_sandboxes,
            network=self._config.terminal_network,
            options=self._config.backend_options,
        )

    async def _end_activities(self) -> None:
        with anyio.CancelScope(shield=True):
            for activity in self._activities:
                activity.close()
            while self._activities:
                self._activity_ended = anyio.Event()
                await self._activity_ended.wait()

    async def _leave(self, stack: AsyncExitStack) -> None:
        try:
            await stack.aclose()
        except Exception as error:
            self._close_error = error
