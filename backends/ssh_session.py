"""The ssh backend while it is connected: its hosts and their sandboxes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hermes_rl.backends.regular_sweep import RegularSweep
from hermes_rl.backends.shipment import InterpreterStock
from hermes_rl.backends.ssh_dockerfile import ImageRecipe, recipe_of
from hermes_rl.backends.ssh_fleet import SSHFleet, all_at_once
from hermes_rl.backends.ssh_host import HostFacts, SSHHost
from hermes_rl.backends.ssh_options import SSHOptions
from hermes_rl.backends.ssh_plans import directory_plan, image_plan, isolated_plan
from hermes_rl.backends.ssh_sandbox import SSHSandbox
from hermes_rl.backends.ssh_starter import HELLO_TIMEOUT_S, Planner, SandboxStarter, new_id
from hermes_rl.backends.start_deadline import coming_up, too_slow
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    ImageNotFound,
)
from hermes_rl.sandbox import BackendLimits, BackendSettings, Capability, SandboxSpec

__all__ = ["SSHSession"]

logger = logging.getLogger(__name__)


class SSHSession:
    """Opened and closed in one task: it holds the task group of every sandbox's reader.

    Args:
        settings: Of the backend.
        options: Of the backend.
        limits: How much is done at once, on all hosts together.
        is_isolated: Sandboxes are in bubblewrap.
        capabilities: Of the sandboxes.
    """

    def __init__(
        self,
        settings: BackendSettings,
        options: SSHOptions,
        *,
        limits: BackendLimits,
        is_isolated: bool,
        capabilities: frozenset[Capability],
    ) -> None:
        self.is_isolated = is_isolated
        self.capabilities = capabilities
        self._settings = settings
        self._options = options
        self._limits = limits
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
            self._starter = SandboxStarter(
                self._settings.run_id,
                limits=self._limits,
                capabilities=self.capabilities,
                tasks=self._tasks,
            )
            stock = InterpreterStock(self._settings.cache_dir, self._tasks)
            hosts = [
                SSHHost(address, self._options, tasks=self._tasks, stock=stock)
                for address in self._options.addresses()
            ]
            self.fleet = SSHFleet(
                hosts,
                images=self._options.images.items(),
                is_isolated=self.is_isolated,
                starter=self._starter,
            )
            self._sweeps = RegularSweep(self.fleet.sweep, backend="ssh")
            self._stack.push_async_callback(self._disconnect)
            await self.fleet.prepare_all()
        except BaseException:
            await self._stack.aclose()  # no shield around it: it leaves a task group
            raise

    async def _disconnect(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.fleet.disconnect()

    async def close(self) -> None:
        """Close every sandbox, then the connections."""
        with anyio.CancelScope(shield=True):
            await all_at_once(sandbox.close for sandbox in list(self._sandboxes.values()))
        await self._stack.aclose()

    def sweep_regularly(self) -> None:
        """Begin to sweep, now and every minute."""
        self._tasks.start_soon(self._sweeps.run)

    async def sweep(self) -> list[str]:
        """Remove on the hosts what nobody keeps any more; return all that was since last asked.

        Raises:
            BackendUnavailable: No host can be reached.
            ConfigError: The only ones that can refuse.
        """
        return await self._sweeps.now()

    def facts(self) -> Sequence[HostFacts]:
        """Return what is known of the hosts that were reached."""
        return [host.facts for host in self.fleet.hosts if host.facts is not None]

    # Creating

    async def create(self, spec: SandboxSpec) -> SSHSandbox:
        """Start a sandbox; a cancelled caller leaves nothing.

        Raises:
            CreateError: It did not come up, or did not become healthy in time.
            BackendUnavailable: No host can be reached, or can start one now.
            ConfigError: The only ones that can refuse the login, say.
        """
        recipe = await recipe_of(spec, threads=self._starter.threads)
        if recipe is not None and recipe.image not in self._options.images:
            known = ", ".join(sorted(self._options.images)) or "none"
            raise ImageNotFound(
                f"The ssh backend knows no files of image {recipe.image!r} (option images; it "
                f"names: {known}).",
                backend="ssh",
            )
        failure: BackendUnavailable | ConfigError | None = None
        for host in self.fleet.candidates():
            try:
                return await self._create_on(host, spec, recipe)
            except (BackendUnavailable, ConfigError) as error:
                self.fleet.mark_down(host)
                if failure is not None or isinstance(error, ConfigError):
                    logger.warning("ssh: a host was passed over: %s", error)
                failure = failure or error
        raise failure or BackendUnavailable("There is no host.", backend="ssh")

    async def _create_on(
        self, host: SSHHost, spec: SandboxSpec, recipe: ImageRecipe | None
    ) -> SSHSandbox:
        id = new_id()
        await self._take_place(host, id, spec)
        try:
            async with self._starter.admission.start():
                deadline_s = anyio.current_time() + spec.start_timeout_s
                with anyio.fail_after(spec.start_timeout_s):
                    facts = await self.fleet.prepare(host)
                    sandbox = await self._starter.boot(
                        host,
                        spec,
                        self._planner(recipe),
                        facts=facts,
                        id=id,
                        forget=lambda id: self._free_place(host, id),
                    )
                    self._sandboxes[id] = sandbox
        except TimeoutError:
            self._free_place(host, id)
            raise too_slow(spec, backend="ssh") from None
        except BaseException:
            self._free_place(host, id)
            raise
        async with coming_up(sandbox, spec, backend="ssh", deadline_s=deadline_s):
            await self._starter.hear(sandbox)
            if recipe is not None:
                await recipe.apply(sandbox, threads=self._starter.threads)
            await sandbox.ready(spec, timeout_s=HELLO_TIMEOUT_S)
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

    def _planner(self, recipe: ImageRecipe | None) -> Planner:
        if not self.is_isolated:
            return directory_plan
        if recipe is None:
            return self._isolated_plan
        return lambda top, spec, facts: self._image_plan(top, spec, facts, recipe)

    def _network(self, spec: SandboxSpec) -> str:
        return spec.network or self._settings.network or "public"

    def _isolated_plan(self, top: str, spec: SandboxSpec, facts: HostFacts) -> dict[str, Any]:
        return isolated_plan(top, spec, facts, network=self._network(spec))

    def _image_plan(
        self, top: str, spec: SandboxSpec, facts: HostFacts, recipe: ImageRecipe
    ) -> dict[str, Any]:
        return image_plan(
            top,
            recipe.completed(spec),
            facts,
            network=self._network(spec),
            files=facts.images[recipe.image],
            workdir=spec.workdir or recipe.workdir or "/",
        )
