"""A sandbox whose commands and files go through an outpost; the base of most backends' sandboxes.

A backend subclasses :class:`OutpostSandbox` and overrides what differs:

=====================  ====================================================================
``_remove()``          end the environment itself (delete the container, the directory)
``_explain(loss)``     why did the stream end? (inspect once: oom, expired, removed, unknown)
``_settle()``          wait while a lost outpost is being started again
``pause()``            needs PAUSE; set ``self._channel.is_paused`` while frozen
``changes()``          needs CHANGES
``_exec_trusted()``    needs ENGINE_ACCESS
``_read_trusted()``    needs ENGINE_ACCESS
=====================  ====================================================================

Making one, inside ``Backend.create``::

    channel_end = await open_my_transport(...)        # attach first, then start
    sandbox = MySandbox(id=..., transport=channel_end, capabilities=...)
    self._tasks.start_soon(sandbox.serve)             # the backend's own task group
    try:
        await sandbox.ready(spec, timeout_s=...)      # hello, startup command, health check
    except BaseException:
        await sandbox.close()
        raise

``serve`` ends only when the transport does; ``close()`` closes it. The backend's ``__aexit__``
closes every sandbox that is left and only then leaves its task group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import anyio.to_thread

from hermes_rl.backends.outpost.answers import Hello
from hermes_rl.backends.outpost.channel import Loss, OutpostChannel
from hermes_rl.backends.outpost.files import list_directory, read_file, write_file
from hermes_rl.backends.outpost.frames import Kind
from hermes_rl.backends.outpost.process import Execution, StreamContext, run_to_end
from hermes_rl.backends.outpost.request import RunRequest
from hermes_rl.backends.outpost.transfer import download, upload
from hermes_rl.backends.outpost.transport import Transport
from hermes_rl.errors import (
    CreateError,
    SandboxError,
    SandboxGone,
    Unsupported,
)
from hermes_rl.sandbox import (
    DEFAULT_MAX_OUTPUT_BYTES,
    Capability,
    Change,
    DirEntry,
    ExecResult,
    HealthCheck,
    Process,
    SandboxSpec,
)

__all__ = ["OutpostSandbox"]

logger = logging.getLogger(__name__)

CLOSE_LIMIT_S = 10.0


class OutpostSandbox:
    """Implements :class:`hermes_rl.sandbox.Sandbox` over one outpost channel.

    Args:
        id: The sandbox's id.
        backend: Registered name of the backend, for messages.
        transport: The stream to the outpost; owned and closed by this object.
        capabilities: What this sandbox can do; BASH is added when the outpost reports it.
        transfers: Limits how many uploads and downloads run at once, shared by a backend's
            sandboxes.
        threads: Worker threads for local files, shared likewise.
    """

    def __init__(
        self,
        *,
        id: str,
        backend: str,
        transport: Transport,
        capabilities: frozenset[Capability],
        transfers: anyio.Semaphore | None = None,
        threads: anyio.CapacityLimiter | None = None,
    ) -> None:
        self.id = id
        self.backend = backend
        self.capabilities = capabilities
        self._transport = transport
        self._channel = OutpostChannel(transport, explain=self._explain)
        self._sessions: dict[tuple[str | None, str], anyio.Lock] = {}
        self._transfers = transfers or anyio.Semaphore(4)
        self._threads = threads or anyio.CapacityLimiter(4)
        self._closing = False
        self._closed = anyio.Event()
        self._hello: Hello | None = None
        self._has_run_commands = False

    # Life

    async def serve(self) -> None:
        """Read the channel until its end. Run it in the backend's task group."""
        await self._channel.run()

    async def ready(self, spec: SandboxSpec, *, timeout_s: float) -> None:
        """Wait for the outpost, start the startup command, pass the health check.

        Raises:
            SandboxError: The outpost never answered or the sandbox ended.
            CreateError: The health check failed.
        """
        self._hello = await self._channel.wait_hello(timeout_s=timeout_s)
        if self._hello.shell == "bash":
            self.capabilities |= {Capability.BASH}
        missing = {Capability.BASH} & spec.needs - self.capabilities
        if missing:
            raise self._unsupported(Capability.BASH)
        if spec.startup is not None:
            await self.start_detached(spec.startup)
        if spec.healthcheck is not None:
            await self._pass_health_check(spec.healthcheck)

    @property
    def home(self) -> str:
        """Home directory of the default user."""
        return self._hello.home if self._hello else "/"

    async def start_detached(self, cmd: str | Sequence[str]) -> None:
        """Start a command that nobody waits for; it ends with the sandbox."""
        self._has_run_commands = True
        request = RunRequest(cmd=cmd, limit_bytes=1024, output="tail")
        execution = Execution(request)
        with self._channel.waiting(execution) as id:
            await request.send(self._channel, id)
            await execution.started.wait()
            if execution.failure is not None:
                failed = execution.outcome()
                raise CreateError(
                    f"The startup command could not be started: {failed.stderr_text.strip()}",
                    backend=self.backend,
                    sandbox_id=self.id,
                )
            execution.check()

    async def _pass_health_check(self, check: HealthCheck) -> None:
        start = anyio.current_time()
        failures = 0
        while True:
            result = await self.exec(check.command, timeout_s=check.timeout_s, session=None)
            if result.exit_code == 0:
                return
            if anyio.current_time() - start >= check.start_period_s:
                failures += 1
            if failures >= max(1, check.retries):
                output = (result.text + result.stderr_text).strip()[-500:]
                raise CreateError(
                    f"The health check {check.command!r} failed {failures} times: {output}",
                    backend=self.backend,
                    sandbox_id=self.id,
                )
            await anyio.sleep(check.interval_s)

    async def close(self) -> None:
        """Remove the sandbox. Idempotent, not cancellable, at most 10 s."""
        with anyio.move_on_after(CLOSE_LIMIT_S, shield=True) as scope:
            if self._closing:
                await self._closed.wait()
                return
            self._closing = True
            try:
                await self._remove()
            finally:
                await self._transport.aclose()
                self._closed.set()
        if scope.cancelled_caught:
            logger.warning("closing sandbox %s took over %g s", self.id, CLOSE_LIMIT_S)

    async def _remove(self) -> None:
        """End the environment behind the channel; "already gone" is success."""

    async def _explain(self, loss: Loss) -> SandboxError:
        """Return the error callers get from now on. Called once, when the stream has ended."""
        if self._closing:
            return self._gone("it was closed", cause_removed=True)
        if loss.bye == "expired":
            return SandboxGone(
                f"Sandbox {self.id} is gone: its lease is over.",
                cause="expired",
                backend=self.backend,
                sandbox_id=self.id,
            )
        return self._gone(loss.reason)

    async def _settle(self) -> None:
        """Wait while a lost outpost is being started again; for backends that do so."""

    def _gone(self, why: str, *, cause_removed: bool = False) -> SandboxGone:
        return SandboxGone(
            f"Sandbox {self.id} is gone: {why}.",
            cause="removed" if cause_removed else "unknown",
            backend=self.backend,
            sandbox_id=self.id,
        )

    def _unsupported(self, capability: Capability) -> Unsupported:
        return Unsupported(
            f"The backend {self.backend!r} lacks the capability {capability.value!r}.",
            capability=capability.value,
            backend=self.backend,
            sandbox_id=self.id,
        )

    def _check(self, *, user: str | None = None, pty: bool = False) -> None:
        if self._closing:
            raise self._gone("it was closed", cause_removed=True)
        self._channel.check()
        if user is not None and Capability.USERS not in self.capabilities:
            raise self._unsupported(Capability.USERS)
        if pty and Capability.PTY not in self.capabilities:
            raise self._unsupported(Capability.PTY)

    # Commands

    async def exec(
        self,
        cmd: str | Sequence[str],
        *,
        timeout_s: float,
        session: str | None = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes | None = None,
        max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
        merge_stderr: bool = False,
        trusted: bool = False,
    ) -> ExecResult:
        """Run a command to its end; see :meth:`hermes_rl.sandbox.Sandbox.exec`."""
        await self._settle()
        self._check(user=user)
        request = RunRequest(
            cmd=cmd,
            limit_bytes=max_output_bytes,
            timeout_s=timeout_s,
            session=session,
            saves_session=session is not None,
            cwd=cwd,
            env=env or {},
            user=user,
            stdin=stdin,
            merge_stderr=merge_stderr,
        )
        self._has_run_commands = True
        if trusted:
            return await self._exec_trusted(request)
        if session is None:
            return await run_to_end(self._channel, request)
        async with self._sessions.setdefault((user, session), anyio.Lock()):
            return await run_to_end(self._channel, request)

    async def _exec_trusted(self, request: RunRequest) -> ExecResult:
        raise self._unsupported(Capability.ENGINE_ACCESS)

    def stream(
        self,
        cmd: str | Sequence[str],
        *,
        timeout_s: float | None = None,
        session: str | None = "agent",
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        merge_stderr: bool = False,
        pty: bool = False,
        tail_bytes: int | None = None,
    ) -> AbstractAsyncContextManager[Process]:
        """Start a command and talk to it; see :meth:`hermes_rl.sandbox.Sandbox.stream`."""
        self._check(user=user, pty=pty)
        request = RunRequest(
            cmd=cmd,
            output="flow" if tail_bytes is None else "tail",
            limit_bytes=tail_bytes or 0,
            timeout_s=timeout_s,
            session=session,
            cwd=cwd,
            env=env or {},
            user=user,
            keeps_stdin_open=True,
            merge_stderr=merge_stderr or pty,
            pty=pty,
        )
        self._has_run_commands = True
        return StreamContext(self._channel, request)

    async def kill_all(self) -> None:
        """Kill every process in the sandbox but the outpost."""
        self._check()
        await self._channel.ask(Kind.KILL_ALL)

    async def ping(self, *, timeout_s: float = 5.0) -> float:
        """Return the round trip in seconds."""
        await self._settle()
        self._check()
        return await self._channel.ping(timeout_s=timeout_s)

    def pause(self) -> AbstractAsyncContextManager[None]:
        """Refuse, unless a backend overrides this."""
        raise self._unsupported(Capability.PAUSE)

    async def changes(self, *, suspects: str = "") -> Sequence[Change]:
        """Refuse, unless a backend overrides this."""
        raise self._unsupported(Capability.CHANGES)

    # Files

    async def read(
        self,
        path: str,
        *,
        max_bytes: int,
        offset: int = 0,
        trusted: bool = False,
        user: str | None = None,
    ) -> bytes:
        """Read a file; see :meth:`hermes_rl.sandbox.Sandbox.read`."""
        if trusted:
            return await self._read_trusted(path, max_bytes=max_bytes, offset=offset)
        await self._settle()
        self._check(user=user)
        return await read_file(
            self._channel,
            path,
            max_bytes=max_bytes,
            offset=offset,
            user=user,
            sandbox_id=self.id,
            threads=self._threads,
        )

    async def _read_trusted(self, path: str, *, max_bytes: int, offset: int) -> bytes:
        raise self._unsupported(Capability.ENGINE_ACCESS)

    async def write(
        self, path: str, data: bytes, *, mode: int | None = None, user: str | None = None
    ) -> None:
        """Write a file atomically; see :meth:`hermes_rl.sandbox.Sandbox.write`."""
        await self._settle()
        self._check(user=user)
        await write_file(self._channel, path, data, mode=mode, user=user, sandbox_id=self.id)

    async def list(self, path: str, *, user: str | None = None) -> list[DirEntry]:
        """List a directory; see :meth:`hermes_rl.sandbox.Sandbox.list`."""
        await self._settle()
        self._check(user=user)
        return await list_directory(self._channel, path, user=user, sandbox_id=self.id)

    async def upload(self, local: Path, remote: str, *, user: str | None = None) -> None:
        """Copy a local file or directory; see :meth:`hermes_rl.sandbox.Sandbox.upload`."""
        await self._settle()
        self._check(user=user)
        await upload(
            self._channel,
            local,
            remote,
            places=self._transfers,
            threads=self._threads,
            user=user,
        )

    async def download(
        self, remote: str, local: Path, *, max_bytes: int = 1 << 30, user: str | None = None
    ) -> None:
        """Copy a file or directory out; see :meth:`hermes_rl.sandbox.Sandbox.download`."""
        await self._settle()
        self._check(user=user)
        await download(
            self._channel,
            remote,
            local,
            max_bytes=max_bytes,
            places=self._transfers,
            threads=self._threads,
            user=user,
        )
