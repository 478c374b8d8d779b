"""The ssh backend while it is connected: its hosts and their sandboxes."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import PurePosixPath
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hermes_rl.backends.admission import Admission
from hermes_rl.backends.outpost.guard import EXIT_NO_RUNTIME
from hermes_rl.backends.ownership import Owner, labels_for
from hermes_rl.backends.runtime import MANIFEST, Runtime
from hermes_rl.backends.ssh_dockerfile import ImageRecipe, recipe_of
from hermes_rl.backends.ssh_host import HostFacts, SSHHost, runtime_name
from hermes_rl.backends.ssh_options import SSHOptions
from hermes_rl.backends.ssh_plans import directory_plan, image_plan, isolated_plan
from hermes_rl.backends.ssh_sandbox import SSHSandbox
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ChannelLost,
    ConfigError,
    CreateError,
    ImageNotFound,
    SandboxError,
    SandboxGone,
)
from hermes_rl.sandbox import BackendLimits, BackendSettings, Capability, SandboxSpec

__all__ = ["SSHSession"]

logger = logging.getLogger(__name__)

HELLO_TIMEOUT_S = 60.0
TRIAL = SandboxSpec(lease_s=120.0)
"""Of the sandbox that carries our interpreter to a host, and of the one that tries bubblewrap."""
FILE_THREADS = 4
DOWN_S = 30.0
"""A host that could not be reached is left alone for so long while there are others."""
SWEEP_INTERVAL_S = 60.0


class SSHSession:
    """Opened and closed in one task: it holds the task group of every sandbox's reader.

    Args:
        settings: Of the backend.
        options: Of the backend.
        limits: How much is done at once, on all hosts together.
        runtime: The interpreter for sandboxes in bubblewrap; None = none is isolated.
    """

    def __init__(
        self,
        settings: BackendSettings,
        options: SSHOptions,
        *,
        limits: BackendLimits,
        runtime: Runtime | None,
    ) -> None:
        self.runtime = runtime
        self.capabilities: frozenset[Capability] = frozenset()
        self._settings = settings
        self._options = options
        self._admission = Admission(starting=limits.starting or 1, removing=limits.removing or 1)
        self._transfers = anyio.Semaphore(limits.transfers or 1)
        self._threads = anyio.CapacityLimiter(FILE_THREADS)
        self._owner = Owner.current()
        self._hosts: list[SSHHost] = []
        self._down_until: dict[SSHHost, float] = {}
        self._sandboxes: dict[str, SSHSandbox] = {}
        self._stack = AsyncExitStack()

    # Life

    async def open(self) -> None:
        """Connect to the hosts and prepare them.

        Raises:
            ConfigError: A host is not trusted, refuses the login, or is no host for sandboxes.
            BackendUnavailable: None can be reached, or bubblewrap does not work there.
        """
        try:
            self._tasks: TaskGroup = await self._stack.enter_async_context(
                anyio.create_task_group()
            )
            self._stack.callback(self._tasks.cancel_scope.cancel)
            self._stack.push_async_callback(self._disconnect)
            self._hosts = [
                SSHHost(address, self._options, self._tasks)
                for address in self._options.addresses()
            ]
            await self._prepare_all()
        except BaseException:
            await self._stack.aclose()  # no shield around it: it leaves a task group
            raise

    async def _prepare_all(self) -> None:
        errors: list[BackendUnavailable | ConfigError] = []

        async def prepare(host: SSHHost) -> None:
            try:
                await self.prepare(host)
            except (BackendUnavailable, ConfigError) as error:
                errors.append(error)

        await _all(lambda host=host: prepare(host) for host in self._hosts)
        fatal = [error for error in errors if isinstance(error, ConfigError)]
        if fatal or len(errors) == len(self._hosts):
            raise (fatal or errors)[0]
        for error in errors:
            logger.warning("ssh: going on without a host: %s", error)

    async def _disconnect(self) -> None:
        with anyio.CancelScope(shield=True):
            await _all(host.connections.close for host in self._hosts)

    async def close(self) -> None:
        """Close every sandbox, then the connections."""
        with anyio.CancelScope(shield=True):
            await _all(sandbox.close for sandbox in list(self._sandboxes.values()))
        await self._stack.aclose()

    def sweep_regularly(self) -> None:
        """Begin to sweep, now and every minute."""
        self._tasks.start_soon(self._sweep_regularly)

    async def _sweep_regularly(self) -> None:
        while True:
            try:
                await self.sweep()
            except (SandboxError, ConfigError) as error:
                logger.info("ssh: sweeping: %s", error)
            await anyio.sleep(SWEEP_INTERVAL_S)

    async def sweep(self) -> Sequence[str]:
        """Remove on every host what nobody keeps any more; return it.

        Raises:
            BackendUnavailable: A host cannot be reached.
        """
        return [each for host in self._hosts for each in await host.sweep()]

    async def records(self) -> list[tuple[SSHHost, dict[str, Any]]]:
        """Return what all engines have on the hosts.

        Raises:
            BackendUnavailable: A host cannot be reached.
        """
        return [(host, record) for host in self._hosts for record in await host.records()]

    @property
    def has_bash(self) -> bool:
        """Whether every host that was surveyed has bash."""
        return all(host.facts.has_bash for host in self._hosts if host.facts is not None)

    # Hosts

    async def prepare(self, host: SSHHost) -> HostFacts:
        """Survey a host once; where sandboxes are isolated, bring our interpreter and try it.

        Raises:
            ConfigError: It is not trusted, refuses the login, or is no host for sandboxes.
            BackendUnavailable: It cannot be reached, or bubblewrap does not work there.
        """
        async with host.preparing:
            if host.facts is not None:
                return host.facts
            try:
                facts = await host.survey(self.runtime)
                self._check_images(host, facts)
                if self.runtime is not None:
                    host.check_bubblewrap(facts)
                    if not facts.has_runtime:
                        await self._bring_runtime(host, facts, self.runtime)
                    await self._try_bubblewrap(host, facts)
            except BaseException:
                host.facts = None
                raise
            return facts

    def _check_images(self, host: SSHHost, facts: HostFacts) -> None:
        missing = sorted(set(self._options.images) - facts.images)
        if missing and self.runtime is not None:
            raise ConfigError(
                f"{host.address} has no directory {self._options.images[missing[0]]} with the "
                f"files of image {missing[0]!r}. Unpack them there, e.g. docker export | tar -x."
            )

    async def _bring_runtime(self, host: SSHHost, facts: HostFacts, runtime: Runtime) -> None:
        target = f"{facts.base}/{runtime_name(runtime)}"
        scratch = f"{facts.base}/.runtime-{uuid.uuid4().hex}"
        finish = (
            'chmod -R a+rX "$1"; mv -T "$1" "$2" 2>/dev/null || rm -rf "$1"; '
            f'[ -e "$2/{MANIFEST}" ]'
        )
        sandbox = await self._boot(host, TRIAL, directory_plan, facts)
        try:
            await sandbox.ready(TRIAL, timeout_s=HELLO_TIMEOUT_S)
            await sandbox.upload(runtime.path, scratch)
            moved = await sandbox.exec(
                ["sh", "-c", finish, "sh", scratch, target], timeout_s=60.0, session=None
            )
        finally:
            await sandbox.close()
        if moved.exit_code != 0:
            raise host.unavailable(f"did not take our interpreter: {moved.stderr_text.strip()}")

    async def _try_bubblewrap(self, host: SSHHost, facts: HostFacts) -> None:
        sandbox = await self._boot(host, TRIAL, self._isolated_plan, facts)
        try:
            await self._hear(sandbox)
        except (SandboxGone, CreateError, ChannelLost) as error:
            raise host.unavailable(
                f"cannot isolate with bubblewrap ({sandbox.wire.complaint or error}). "
                "Unprivileged user namespaces may be disabled there (sysctl "
                "kernel.unprivileged_userns_clone=1, or "
                "kernel.apparmor_restrict_unprivileged_userns=0); or use ssh_isolation: none"
            ) from error
        finally:
            await sandbox.close()

    def _candidates(self) -> list[SSHHost]:
        """Return the hosts, those with most room first, those that are down last."""
        now_s = time.monotonic()

        def order(host: SSHHost) -> tuple[bool, float]:
            places = host.places
            waiting = places.statistics().tasks_waiting
            return self._down_until.get(host, 0.0) > now_s, waiting - places.available_tokens

        return sorted(self._hosts, key=order)

    # Creating

    async def create(self, spec: SandboxSpec) -> SSHSandbox:
        """Start a sandbox; a cancelled caller leaves nothing.

        Raises:
            CreateError: It did not come up, or did not become healthy in time.
            BackendUnavailable: No host can be reached.
        """
        recipe = await recipe_of(spec, threads=self._threads)
        if recipe is not None and recipe.image not in self._options.images:
            known = ", ".join(sorted(self._options.images)) or "none"
            raise ImageNotFound(
                f"The ssh backend knows no files of image {recipe.image!r} (option images; it "
                f"names: {known}).",
                backend="ssh",
            )
        failure: BackendUnavailable | None = None
        for host in self._candidates():
            try:
                return await self._create_on(host, spec, recipe)
            except BackendUnavailable as error:
                self._down_until[host] = time.monotonic() + DOWN_S
                failure = error
        raise failure or BackendUnavailable("There is no host.", backend="ssh")

    async def _create_on(
        self, host: SSHHost, spec: SandboxSpec, recipe: ImageRecipe | None
    ) -> SSHSandbox:
        id = f"ssh-{uuid.uuid4().hex[:12]}"
        await self._take_place(host, id, spec)
        try:
            async with self._admission.start():
                deadline_s = anyio.current_time() + spec.start_timeout_s
                with anyio.fail_after(spec.start_timeout_s):
                    facts = await self.prepare(host)
                    plan = self._planner(recipe)
                    sandbox = await self._boot(host, spec, plan, facts, id=id)
        except TimeoutError:
            self._free_place(host, id)
            raise _too_slow(spec) from None
        except BaseException:
            self._free_place(host, id)
            raise
        try:
            with anyio.fail_after(deadline_s - anyio.current_time()):
                await self._hear(sandbox)
                if recipe is not None:
                    await recipe.apply(sandbox, threads=self._threads)
                await sandbox.ready(spec, timeout_s=HELLO_TIMEOUT_S)
        except TimeoutError:
            await sandbox.close()
            raise _too_slow(spec) from None
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def _take_place(self, host: SSHHost, id: str, spec: SandboxSpec) -> None:
        with anyio.move_on_after(spec.start_timeout_s):
            await host.places.acquire_on_behalf_of(id)
            return
        raise Capacity(
            f"{host.address} had no place for another sandbox within {spec.start_timeout_s:g} s "
            f"(sandboxes_per_host: {self._options.sandboxes_per_host}).",
            backend="ssh",
        )

    def _free_place(self, host: SSHHost, id: str) -> None:
        self._sandboxes.pop(id, None)
        if id in host.places.statistics().borrowers:
            host.places.release_on_behalf_of(id)

    def _planner(self, recipe: ImageRecipe | None) -> Callable[..., dict[str, Any]]:
        if self.runtime is None:
            return directory_plan
        if recipe is None:
            return self._isolated_plan
        return lambda top, spec, facts: self._image_plan(top, spec, facts, recipe)

    def _network(self, spec: SandboxSpec) -> str:
        return spec.network or self._settings.network or "public"

    def _isolated_plan(self, top: str, spec: SandboxSpec, facts: HostFacts) -> dict[str, Any]:
        assert self.runtime is not None
        return isolated_plan(top, spec, facts, self.runtime, network=self._network(spec))

    def _image_plan(
        self, top: str, spec: SandboxSpec, facts: HostFacts, recipe: ImageRecipe
    ) -> dict[str, Any]:
        assert self.runtime is not None
        return image_plan(
            top,
            recipe.completed(spec),
            facts,
            self.runtime,
            network=self._network(spec),
            files=self._options.images[recipe.image],
            workdir=spec.workdir or recipe.workdir or "/",
        )

    async def _boot(
        self,
        host: SSHHost,
        spec: SandboxSpec,
        planner: Callable[[str, SandboxSpec, HostFacts], dict[str, Any]],
        facts: HostFacts,
        *,
        id: str = "",
    ) -> SSHSandbox:
        """Start the guard; the outpost's first word is not yet waited for."""
        id = id or f"ssh-{uuid.uuid4().hex[:12]}"
        top = str(PurePosixPath(facts.base, id))
        labels = labels_for(
            self._settings.run_id,
            owner=self._owner,
            now_s=time.time(),
            lease_s=spec.lease_s,
            extra=spec.labels,
        )
        plan = {**planner(top, spec, facts), "labels": labels}
        stream = await host.start("guard", plan)
        sandbox = SSHSandbox(
            id=id,
            host=host,
            top=top,
            stream=stream,
            capabilities=self.capabilities - {Capability.BASH},
            transfers=self._transfers,
            threads=self._threads,
            admission=self._admission,
            forget=lambda id: self._free_place(host, id),
        )
        self._sandboxes[id] = sandbox
        self._tasks.start_soon(sandbox.serve)
        return sandbox

    async def _hear(self, sandbox: SSHSandbox) -> None:
        """Wait until the outpost speaks, or find out why it does not.

        Raises:
            CreateError: The host refuses this sandbox.
            BackendUnavailable: The host lost what was prepared there; it is prepared again.
        """
        host, stream = sandbox.host, sandbox.wire
        try:
            await sandbox.ready(SandboxSpec(), timeout_s=HELLO_TIMEOUT_S)
        except (ChannelLost, SandboxGone) as error:
            if stream.exit_status == EXIT_NO_RUNTIME:
                host.facts = None
                raise host.unavailable(f"lost its files ({stream.complaint})") from error
            if stream.exit_status and stream.complaint and sandbox.greeted() is None:
                raise CreateError(
                    f"{host.address} cannot start a sandbox: {stream.complaint}.", backend="ssh"
                ) from error
            raise


def _too_slow(spec: SandboxSpec) -> CreateError:
    return CreateError(
        f"The sandbox was not up and healthy within {spec.start_timeout_s:g} s.", backend="ssh"
    )


async def _all(calls: Any) -> None:
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call)
