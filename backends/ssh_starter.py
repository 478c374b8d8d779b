"""Starting a sandbox on a host: its guard, and the first word of its outpost."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import anyio
from anyio.abc import TaskGroup

from hermes_rl.backends.admission import Admission
from hermes_rl.backends.outpost.guard import EXIT_NO_RUNTIME, EXIT_TROUBLE
from hermes_rl.backends.outpost.start import NO_PYTHON_EXIT_CODE
from hermes_rl.backends.ownership import Owner, labels_for
from hermes_rl.backends.ssh_host import HostFacts, SSHHost
from hermes_rl.backends.ssh_sandbox import SSHSandbox
from hermes_rl.errors import ChannelLost, CreateError, SandboxGone
from hermes_rl.sandbox import BackendLimits, Capability, SandboxSpec

__all__ = ["Planner", "SandboxStarter", "new_id"]

HELLO_TIMEOUT_S = 60.0
FILE_THREADS = 4
Planner = Callable[[str, SandboxSpec, HostFacts], dict[str, Any]]
"""Makes a guard's plan of a sandbox's directory, its spec and its host."""


class SandboxStarter:
    """Starts the sandboxes of one run.

    Args:
        run_id: For the labels.
        limits: How much is done at once, on all hosts together.
        capabilities: Of sandboxes; BASH is added to those that have it.
        tasks: For each sandbox's reader.
    """

    def __init__(
        self,
        run_id: str,
        *,
        limits: BackendLimits,
        capabilities: frozenset[Capability],
        tasks: TaskGroup,
    ) -> None:
        self.admission = Admission(starting=limits.starting or 1, removing=limits.removing or 1)
        self.threads = anyio.CapacityLimiter(FILE_THREADS)
        self._transfers = anyio.Semaphore(limits.transfers or 1)
        self._capabilities = capabilities - {Capability.BASH}
        self._owner = Owner.current()
        self._run_id = run_id
        self._tasks = tasks

    async def boot(
        self,
        host: SSHHost,
        spec: SandboxSpec,
        planner: Planner,
        *,
        facts: HostFacts,
        id: str = "",
        forget: Callable[[str], object] = lambda id: None,
    ) -> SSHSandbox:
        """Start the guard; the outpost's first word is not yet waited for.

        Args:
            host: Where.
            spec: The sandbox.
            planner: Of its kind.
            facts: Of the host.
            id: Its id; "" = a new one.
            forget: Called with the id when it is gone.

        Raises:
            BackendUnavailable: The host cannot be reached.
            ConfigError: It is not trusted, or refuses the login.
        """
        id = id or new_id()
        top = str(PurePosixPath(facts.base, id))
        labels = labels_for(
            self._run_id,
            owner=self._owner,
            now_s=time.time(),
            lease_s=spec.lease_s,
            extra=spec.labels,
        )
        plan = {**planner(top, spec, facts), "labels": labels}
        sandbox = SSHSandbox(
            id=id,
            host=host,
            top=top,
            stream=await host.start("guard", plan),
            capabilities=self._capabilities,
            transfers=self._transfers,
            threads=self.threads,
            admission=self.admission,
            forget=forget,
        )
        self._tasks.start_soon(sandbox.serve)
        return sandbox

    async def hear(self, sandbox: SSHSandbox) -> None:
        """Wait until the outpost speaks, or find out why it does not.

        Raises:
            CreateError: The host refuses this sandbox.
            BackendUnavailable: The host cannot now, or lost what was prepared there; in the latter
                case it is prepared again.
        """
        host, stream = sandbox.host, sandbox.wire
        try:
            await sandbox.ready(SandboxSpec(), timeout_s=HELLO_TIMEOUT_S)
        except (ChannelLost, SandboxGone) as error:
            is_gone = stream.exit_status == NO_PYTHON_EXIT_CODE and sandbox.greeted() is None
            if is_gone or stream.exit_status == EXIT_NO_RUNTIME:
                host.facts = None
                why = stream.complaint or "no python3"
                raise host.unavailable(f"lost its files ({why})") from error
            if stream.exit_status == EXIT_TROUBLE:
                raise host.unavailable(f"cannot start a sandbox ({stream.complaint})") from error
            if stream.exit_status and stream.complaint and sandbox.greeted() is None:
                raise CreateError(
                    f"{host.address} cannot start a sandbox: {stream.complaint}.", backend="ssh"
                ) from error
            raise


def new_id() -> str:
    """Return an id for a sandbox, which is also its directory's name."""
    return f"ssh-{uuid.uuid4().hex[:12]}"
