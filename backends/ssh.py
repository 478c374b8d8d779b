"""The ssh backend: sandboxes on other machines, over nothing but ssh.

A host needs sshd and a python3 (3.8 or newer); nothing is installed there. Each sandbox is one
ssh session with a guard and an outpost behind it, and a directory:

* without isolation (``ssh_isolation: none``) commands run as the login user, on its files;
* with ``bwrap`` each sandbox is in bubblewrap, as the local backend's are, over the host's own
  programs or over the unpacked files of an image.

When a session ends, whatever the reason, its sandbox is killed and its directory removed by the
guard on the host. See ``docs/backends.md``.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hermes_rl.backends.extra import import_for
from hermes_rl.backends.ownership import DEADLINE_LABEL, OWNER_LABEL, RUN_LABEL
from hermes_rl.backends.session_backend import SessionBackend
from hermes_rl.backends.ssh_options import SSHOptions, parse_options
from hermes_rl.errors import BackendUnavailable, ConfigError
from hermes_rl.sandbox import (
    BackendLimits,
    BackendSettings,
    Capability,
    Check,
    SandboxRecord,
)

if TYPE_CHECKING:
    from hermes_rl.backends.ssh_session import SSHSession

__all__ = ["SSHBackend", "create_backend"]

logger = logging.getLogger(__name__)

OPERATIONS_PER_HOST = 8
"""Sandboxes that start, and that are removed, at once."""
WARNING = (
    "The ssh backend does not isolate: commands of the agent run as the login user on your hosts, "
    "with its files and its network. Use ssh_isolation: bwrap for models and tasks you do not "
    "trust."
)
UNCHECKED = (
    "check_host_key is off: whoever answers at a host's address is believed, and can read and "
    "change everything."
)


def create_backend(settings: BackendSettings) -> SSHBackend:
    """Return an unconnected backend.

    Raises:
        ConfigError: There is no host, or an option is unknown or wrong.
    """
    return SSHBackend(settings, parse_options(settings.options))


class SSHBackend(SessionBackend["SSHSession"]):
    """Makes sandboxes on the hosts of its options; nothing heavy until it is entered."""

    name = "ssh"

    def __init__(self, settings: BackendSettings, options: SSHOptions) -> None:
        operations = OPERATIONS_PER_HOST * len(options.hosts)
        super().__init__(
            settings,
            capabilities=_capabilities(options, isolated=options.ssh_isolation == "bwrap"),
            limits=BackendLimits(
                starting=settings.max_starting or operations,
                removing=operations,
                running=options.sandboxes_per_host * len(options.hosts),
            ),
        )
        self._options = options

    async def _connect(self) -> SSHSession:
        """Connect to the hosts and prepare them; warn if nothing isolates.

        Raises:
            ConfigError: A host is not trusted, refuses the login, or is no host for sandboxes.
            BackendUnavailable: None can be reached, or bubblewrap does not work there.
            MissingExtra: asyncssh is not installed.
        """
        if not self._options.check_host_key:
            logger.warning(UNCHECKED)
        session = await self._opened()
        session.sweep_regularly()
        self.capabilities = session.capabilities
        return session

    async def _opened(self) -> SSHSession:
        isolation = self._options.ssh_isolation
        if isolation == "none":
            logger.warning(WARNING)
            return await self._open(is_isolated=False)
        try:
            return await self._open(is_isolated=True)
        except BackendUnavailable as error:
            if isolation == "bwrap":
                raise
            logger.warning("%s (%s)", WARNING, error)
            return await self._open(is_isolated=False)

    async def _open(self, *, is_isolated: bool) -> SSHSession:
        await import_for(self.name, "asyncssh", extra="ssh")
        from hermes_rl.backends.ssh_session import SSHSession

        session = SSHSession(
            self._settings,
            self._options,
            limits=self.limits,
            is_isolated=is_isolated,
            capabilities=_capabilities(self._options, isolated=is_isolated),
        )
        await session.open()
        return session

    @asynccontextmanager
    async def _connected_for_now(self) -> AsyncIterator[SSHSession]:
        """Yield the session, or one for now that does not prepare for isolation."""
        if self._session is not None:
            yield self._session
            return
        session = await self._open(is_isolated=False)
        try:
            yield session
        finally:
            await session.close()

    async def sweep(self) -> Sequence[str]:
        """Remove on every host what nobody keeps any more; works unconnected too."""
        async with self._connected_for_now() as session:
            return await session.sweep()

    async def records(self) -> Sequence[SandboxRecord]:
        """List what all engines have on the hosts; works unconnected too."""
        async with self._connected_for_now() as session:
            return [
                SandboxRecord(
                    id=found["id"],
                    image=str(host.address),
                    state="running" if found["verdict"] != "owner dead" else "abandoned",
                    run=found["labels"].get(RUN_LABEL, ""),
                    owner=found["labels"].get(OWNER_LABEL, ""),
                    deadline_s=float(found["labels"].get(DEADLINE_LABEL, "0")) or None,
                    verdict=found["verdict"],
                )
                for host, found in await session.fleet.records()
            ]

    async def doctor(self) -> Sequence[Check]:
        """Check each host as a run would; works unconnected too."""
        checks = []
        for text in self._options.hosts:
            options = self._options.model_copy(update={"hosts": (text,)})
            checks += await SSHBackend(self._settings, options)._examine(text)
        return checks

    async def _examine(self, host: str) -> list[Check]:
        isolated = self._options.ssh_isolation != "none"
        try:
            session = await self._open(is_isolated=isolated)
        except (BackendUnavailable, ConfigError) as error:
            return [Check(host, ok=False, detail=str(error), fix=str(error))]
        await session.close()
        bash = all(facts.has_bash for facts in session.facts())
        return [
            Check(host, ok=True, detail="reached" + (", bubblewrap works" if isolated else "")),
            Check(
                f"{host} bash",
                ok=bash,
                fix=""
                if bash
                else "Install bash there; without it functions and aliases do not persist.",
            ),
        ]


def _capabilities(options: SSHOptions, *, isolated: bool) -> frozenset[Capability]:
    found = {Capability.NETWORK_PUBLIC, Capability.PTY}
    if isolated:
        found |= {Capability.ISOLATION, Capability.NETWORK_NONE}
        if options.images:
            found |= {Capability.IMAGES, Capability.DOCKERFILE}
    if options.task_limits == "ignore":
        found |= {Capability.CPU_LIMIT, Capability.MEMORY_LIMIT}
    return frozenset(found)
