"""The docker backend while it is connected: makes sandboxes, and removes them all at the end."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hermes_rl.backends.admission import Admission, StartTurns
from hermes_rl.backends.docker_connection import docker_host
from hermes_rl.backends.docker_container import ContainerPlan, container_config
from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import EngineFailure, translated
from hermes_rl.backends.docker_fate import FateWatch
from hermes_rl.backends.docker_images import Image, ImageStore
from hermes_rl.backends.docker_options import DockerOptions
from hermes_rl.backends.docker_outage import Outage
from hermes_rl.backends.docker_reaper import IMAGE_LABEL, Reaper
from hermes_rl.backends.docker_runtime import (
    ensure_volume,
    is_unseen_by_daemon,
    is_without_interpreter,
)
from hermes_rl.backends.docker_sandbox import DockerSandbox
from hermes_rl.backends.ownership import RUN_LABEL, Owner, labels_for
from hermes_rl.backends.runtime import Runtime, ensure_runtime, kept_runtime
from hermes_rl.backends.start_deadline import coming_up, too_slow
from hermes_rl.errors import (
    BackendUnavailable,
    ChannelLost,
    CreateError,
    ImageNotFound,
    SandboxGone,
)
from hermes_rl.sandbox import BackendLimits, BackendSettings, Capability, SandboxSpec

__all__ = ["DockerSession", "capabilities_of", "limits_for"]

OPERATIONS_PER_CORE = 2
"""Starts, and removals, at once: a daemon does no more per second when asked for more."""
COMMANDS_PER_CORE = 4
"""Commands of the daemon's own that start at once; see :class:`StartTurns`."""
HELLO_TIMEOUT_S = 60.0
CLEANUP_TIMEOUT_S = 10.0
FINAL_SWEEP_TIMEOUT_S = 30.0

_LIMITS = {
    Capability.MEMORY_LIMIT: "MemoryLimit",
    Capability.PIDS_LIMIT: "PidsLimit",
    Capability.CPU_LIMIT: "CpuCfsQuota",
}
"""The daemon's words for what its kernel can enforce."""


def capabilities_of(
    info: Mapping[str, Any], supported: frozenset[Capability]
) -> frozenset[Capability]:
    """Return what of ``supported`` this daemon can do."""
    return supported - {limit for limit, name in _LIMITS.items() if not info.get(name, True)}


def limits_for(cores: int, max_starting: int | None) -> BackendLimits:
    """Return the limits of a daemon with that many cores."""
    operations = OPERATIONS_PER_CORE * cores
    return BackendLimits(starting=max_starting or operations, removing=operations)


class DockerSession:
    """One connection to a daemon and the sandboxes made over it.

    Enter it with ``async with``, in the task that also leaves it.
    """

    capabilities: frozenset[Capability]
    limits: BackendLimits

    def __init__(
        self,
        settings: BackendSettings,
        options: DockerOptions,
        *,
        supported: frozenset[Capability],
    ) -> None:
        self._settings = settings
        self._options = options
        self._supported = supported
        self._owner = Owner.current()
        self._sandboxes: dict[str, DockerSandbox] = {}
        self._unreported: list[str] = []
        self._volume: str | None = None
        self._volume_lock = anyio.Lock()
        self._stack = AsyncExitStack()

    async def open(self) -> None:
        """Connect, sweep what earlier runs left, and start the background work.

        Raises:
            BackendUnavailable: The daemon cannot be reached or our interpreter cannot be copied.
        """
        try:
            await self._connect()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _connect(self) -> None:
        with translated("connect"):
            engine = DockerEngine(docker_host())
            self._engine = await self._stack.enter_async_context(engine)
            info = await engine.json("info")
        self._runtime: Runtime = await ensure_runtime(self._settings.cache_dir)
        self._cores = int(info["NCPU"])
        engine.starts = StartTurns(COMMANDS_PER_CORE * self._cores)
        self.capabilities = capabilities_of(info, self._supported)
        self.limits = limits_for(self._cores, self._settings.max_starting)
        self._admission = Admission(
            starting=self.limits.starting or 1, removing=self.limits.removing or 1
        )
        self._transfers = anyio.Semaphore(self.limits.transfers or 1)
        self._reaper = Reaper(self._engine, self._admission, self._owner)
        with translated("connect"):
            self._unreported = await self._reaper.sweep()
        await self._start_background()

    async def _start_background(self) -> None:
        self._tasks: TaskGroup = await self._stack.enter_async_context(anyio.create_task_group())
        self._stack.callback(self._tasks.cancel_scope.cancel)
        self._outage = Outage(self._engine)
        self._fates = FateWatch(self._engine, f"{RUN_LABEL}={self._settings.run_id}")
        self._images = ImageStore(self._engine, self._tasks, default=self._options.image)
        self._tasks.start_soon(self._fates.watch)
        self._tasks.start_soon(self._reaper.run)

    async def close(self) -> None:
        """Close every sandbox that is left, remove whatever else the run made, disconnect."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as closing:
                for sandbox in list(self._sandboxes.values()):
                    closing.start_soon(sandbox.close)
            with anyio.move_on_after(FINAL_SWEEP_TIMEOUT_S), suppress(EngineFailure):
                await self._reaper.remove_run(self._settings.run_id)
        await self._stack.aclose()

    async def sweep(self) -> Sequence[str]:
        """Remove what dead owners or passed deadlines left; ids, with those of the start."""
        with translated("use"):
            removed = self._unreported + await self._reaper.sweep()
        self._unreported = []
        return removed

    # Creating

    async def create(self, spec: SandboxSpec) -> DockerSandbox:
        """Start a sandbox; cancelling removes whatever was already made.

        Raises:
            BackendLost: The daemon has been away too long.
            CreateError: See :meth:`hermes_rl.sandbox.Backend.create`.
        """
        while True:
            try:
                return await self._create(spec)
            except BackendUnavailable:
                if not await self._outage.waited_out():
                    raise

    async def _create(self, spec: SandboxSpec) -> DockerSandbox:
        self._runtime = await kept_runtime(self._runtime)
        image = await self._images.image_for(spec)
        try:
            return await self._start(spec, image)
        except ImageNotFound:
            # Removed from the daemon since we looked it up.
            self._images.forget(image)
        except CreateError as error:
            if not is_without_interpreter(error):
                raise
            # The volume, or some of the files, were removed since then.
            self._volume = None
            self._runtime = await ensure_runtime(self._settings.cache_dir)
        return await self._start(spec, await self._images.image_for(spec))

    async def _start(self, spec: SandboxSpec, image: Image) -> DockerSandbox:
        """Boot under a permit to start; what may take long afterwards holds none."""
        try:
            async with self._admission.start():
                plan = self._plan(spec, image)  # its lease begins now, not with the waiting
                deadline_s = anyio.current_time() + spec.start_timeout_s
                with anyio.fail_after(spec.start_timeout_s):
                    sandbox = await self._boot(plan)
        except TimeoutError:
            raise too_slow(spec, backend="docker") from None
        async with coming_up(sandbox, spec, backend="docker", deadline_s=deadline_s):
            await self._prepare(sandbox, plan)
        return sandbox

    def _plan(self, spec: SandboxSpec, image: Image) -> ContainerPlan:
        return ContainerPlan(
            spec=spec,
            image=image,
            runtime=self._runtime,
            options=self._options,
            labels=self._labels(spec, image),
            network=spec.network or self._settings.network or "public",
            cores=self._cores,
            capabilities=self.capabilities,
        )

    def _labels(self, spec: SandboxSpec, image: Image) -> dict[str, str]:
        return labels_for(
            self._settings.run_id,
            owner=self._owner,
            now_s=time.time(),
            lease_s=spec.lease_s,
            extra={**spec.labels, IMAGE_LABEL: image.name},
        )

    async def _boot(self, plan: ContainerPlan) -> DockerSandbox:
        """Create, attach, start, and wait for the supervisor. Attach must come before start."""
        name = container = f"hermes-{self._settings.run_id[:8]}-{secrets.token_hex(6)}"
        sandbox: DockerSandbox | None = None
        try:
            with translated("create"):
                container = await self._create_container(name, plan)
                self._fates.track(container)
                transport = await self._engine.attach(container)
                sandbox = self._sandbox(container, plan, transport)
                await self._engine.start(container)
            try:
                bare = dataclasses.replace(plan.spec, startup=None, healthcheck=None)
                await sandbox.ready(bare, timeout_s=HELLO_TIMEOUT_S)
            except (ChannelLost, SandboxGone) as error:
                raise _not_started(error, transport.stderr) from error
        except BaseException:
            with anyio.move_on_after(CLEANUP_TIMEOUT_S, shield=True):
                await (sandbox.close() if sandbox else self._remove(container))
            raise
        return sandbox

    def _sandbox(self, container: str, plan: ContainerPlan, transport: Any) -> DockerSandbox:
        sandbox = DockerSandbox(
            container=container,
            plan=plan,
            engine=self._engine,
            fates=self._fates,
            remove=self._remove,
            transport=transport,
            transfers=self._transfers,
        )
        self._sandboxes[container] = sandbox
        self._tasks.start_soon(sandbox.serve)
        return sandbox

    async def _remove(self, container: str) -> None:
        await self._reaper.remove(container)
        self._sandboxes.pop(container, None)
        self._fates.forget(container)

    async def _create_container(self, name: str, plan: ContainerPlan) -> str:
        """Create, with the interpreter in a volume if the daemon cannot see our files."""
        if self._options.runtime == "volume" or self._volume is not None:
            plan = await self._with_volume(plan)
        try:
            return await self._create_uncancelled(name, plan)
        except EngineFailure as failure:
            if self._options.runtime != "auto" or not is_unseen_by_daemon(failure):
                raise
        return await self._create_uncancelled(name, await self._with_volume(plan))

    async def _create_uncancelled(self, name: str, plan: ContainerPlan) -> str:
        """A cancelled request may or may not have made a container: so it is waited for."""
        container = name
        with anyio.CancelScope(shield=True):
            container = await self._engine.create(name, container_config(plan))
        return container

    async def _with_volume(self, plan: ContainerPlan) -> ContainerPlan:
        async with self._volume_lock:
            if self._volume is None:
                self._volume = await ensure_volume(
                    self._engine, self._runtime, image=plan.image.id, labels=plan.labels
                )
        return dataclasses.replace(plan, volume=self._volume)

    async def _prepare(self, sandbox: DockerSandbox, plan: ContainerPlan) -> None:
        """Start what the spec wants running and wait until it is healthy."""
        if plan.spec.image_command and plan.image.entrypoint:
            await sandbox.start_detached(plan.image.entrypoint)
        await sandbox.ready(plan.spec, timeout_s=HELLO_TIMEOUT_S)


def _not_started(error: ChannelLost | SandboxGone, stderr: bytes) -> Exception:
    """What the supervisor printed before it ended says more than that it ended."""
    text = stderr.decode("utf-8", "replace").strip()
    if not text:
        return error
    return CreateError(
        f"The sandbox's supervisor does not start: {text.splitlines()[-1]}", backend="docker"
    )
