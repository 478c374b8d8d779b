"""The hosts of an ssh backend: made ready, chosen from, swept. One that is down harms no other."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import anyio

from hermes_rl.backends.ssh_host import HostFacts, SSHHost
from hermes_rl.backends.ssh_plans import isolated_plan
from hermes_rl.backends.ssh_starter import SandboxStarter
from hermes_rl.errors import (
    BackendUnavailable,
    ChannelLost,
    ConfigError,
    CreateError,
    SandboxGone,
)
from hermes_rl.sandbox import SandboxSpec

__all__ = ["SSHFleet", "all_at_once"]

logger = logging.getLogger(__name__)

TRIAL = SandboxSpec(lease_s=900.0)
"""Of the sandbox that tries bubblewrap."""
DOWN_S = 30.0
"""A host that could not be reached is left alone for so long while there are others."""
Found = TypeVar("Found")


class SSHFleet:
    """All hosts of one backend.

    Args:
        hosts: Not yet connected.
        images: Image name -> directory or archive on every host.
        is_isolated: Sandboxes are in bubblewrap.
        starter: Starts sandboxes.
    """

    def __init__(
        self,
        hosts: Sequence[SSHHost],
        *,
        images: Iterable[tuple[str, str]],
        is_isolated: bool,
        starter: SandboxStarter,
    ) -> None:
        self.hosts = hosts
        self._images = dict(images)
        self._is_isolated = is_isolated
        self._starter = starter
        self._down_until: dict[SSHHost, float] = {}

    # Being ready

    async def prepare_all(self) -> None:
        """Prepare every host.

        Raises:
            ConfigError: A host is not trusted, refuses the login, or is no host for sandboxes.
            BackendUnavailable: None can be reached, or bubblewrap does not work there.
        """
        errors: list[BackendUnavailable | ConfigError] = []

        async def prepare(host: SSHHost) -> None:
            try:
                await self.prepare(host)
            except (BackendUnavailable, ConfigError) as error:
                errors.append(error)

        await all_at_once(partial(prepare, host) for host in self.hosts)
        fatal = [error for error in errors if isinstance(error, ConfigError)]
        if fatal or len(errors) == len(self.hosts):
            raise (fatal or errors)[0]
        for error in errors:
            logger.warning("ssh: going on without a host: %s", error)

    async def prepare(self, host: SSHHost) -> HostFacts:
        """Survey a host once; where sandboxes are isolated, bring our interpreter and try it.

        Raises:
            ConfigError: It is not trusted, refuses the login, or is no host for sandboxes.
            BackendUnavailable: It cannot be reached, or bubblewrap does not work there.
        """
        async with host.preparing:
            if host.facts is not None:
                return host.facts
            facts = await host.survey()
            if self._is_isolated:
                facts = await self._prepare_isolation(host, facts)
            host.facts = facts
            return facts

    async def _prepare_isolation(self, host: SSHHost, facts: HostFacts) -> HostFacts:
        host.check_bubblewrap(facts)
        for name in self._images.keys() - facts.images.keys():
            raise ConfigError(
                f"{host.address} has no {self._images[name]} with the files of image {name!r}. Put "
                "them there: docker export of a container of it is a tar archive, or unpack that."
            )
        facts = await host.bring_runtime(facts)
        await self._try_bubblewrap(host, facts)
        for name in facts.unpacked_later:
            await host.unpack(self._images[name], facts.images[name])
        return facts

    async def _try_bubblewrap(self, host: SSHHost, facts: HostFacts) -> None:
        def planner(top: str, spec: SandboxSpec, facts: HostFacts) -> dict[str, Any]:
            return isolated_plan(top, spec, facts, network="public")

        sandbox = await self._starter.boot(host, TRIAL, planner, facts=facts)
        try:
            await self._starter.hear(sandbox)
        except (SandboxGone, CreateError, ChannelLost) as error:
            raise host.unavailable(
                f"cannot isolate with bubblewrap ({sandbox.wire.complaint or error}). "
                "Unprivileged user namespaces may be disabled there (sysctl "
                "kernel.unprivileged_userns_clone=1, or "
                "kernel.apparmor_restrict_unprivileged_userns=0); or use ssh_isolation: none"
            ) from error
        finally:
            await sandbox.close()

    # Being chosen

    def candidates(self) -> list[SSHHost]:
        """Return the hosts, those with most room first, those that are down last."""
        now_s = time.monotonic()

        def order(host: SSHHost) -> tuple[bool, float]:
            places = host.places
            waiting = places.statistics().tasks_waiting
            return self._down_until.get(host, 0.0) > now_s, waiting - places.available_tokens

        return sorted(self.hosts, key=order)

    def mark_down(self, host: SSHHost) -> None:
        """Prefer the others for a while."""
        self._down_until[host] = time.monotonic() + DOWN_S

    # What is on them

    async def sweep(self) -> list[str]:
        """Remove on every host that can be reached what nobody keeps any more; return it.

        Raises:
            BackendUnavailable: No host can be reached.
            ConfigError: The only ones that can refuse.
        """
        return [each for _, found in await self._ask(SSHHost.sweep) for each in found]

    async def records(self) -> list[tuple[SSHHost, dict[str, Any]]]:
        """Return what all engines have on the hosts that can be reached.

        Raises:
            BackendUnavailable: No host can be reached.
            ConfigError: The only ones that can refuse.
        """
        return [(host, each) for host, found in await self._ask(SSHHost.records) for each in found]

    async def _ask(
        self, question: Callable[[SSHHost], Awaitable[Found]]
    ) -> list[tuple[SSHHost, Found]]:
        """Ask every host; an error only if none answers."""
        answers: dict[SSHHost, Found] = {}
        errors: list[BackendUnavailable | ConfigError] = []

        async def ask(host: SSHHost) -> None:
            try:
                answers[host] = await question(host)
            except (BackendUnavailable, ConfigError) as error:
                errors.append(error)

        await all_at_once(partial(ask, host) for host in self.hosts)
        if not answers:
            raise errors[0]
        for error in errors:
            logger.warning("ssh: a host was left out: %s", error)
        return [(host, answers[host]) for host in self.hosts if host in answers]

    async def disconnect(self) -> None:
        """Close the connections to all hosts."""
        await all_at_once(host.connections.close for host in self.hosts)


async def all_at_once(calls: Iterable[Callable[[], Coroutine[Any, Any, object]]]) -> None:
    """Make calls beside each other and wait for all."""
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(call)
