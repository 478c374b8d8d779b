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

import errno
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
from anyio.lowlevel import checkpoint

from hermes_rl.backends.outpost.channel import Hello, Loss, OutpostChannel
from hermes_rl.backends.outpost.errno_errors import file_error
from hermes_rl.backends.outpost.frames import (
    FrameError,
    Kind,
    iterate_list,
    pack_fields,
    to_text,
)
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
WRITE_INLINE_BYTES = 512 * 1024
JOIN_HERE_BYTES = 4 << 20
"""Joining more than this on the event loop would hold it for milliseconds."""
LIST_LIMIT_BYTES = 10_000 * 512
MAX_LIST_ENTRIES = 10_000
ENTRIES_PER_TURN = 500
"""Read before other tasks get the loop: about 2 ms."""

_KINDS: dict[bytes, Literal["file", "dir", "link", "other"]] = {
    b"file": "file",
    b"dir": "dir",
    b"link": "link",
    b"other": "other",
}


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

    async def _ask_about(
        self,
        kind: Kind,
        path: str,
        fields: Mapping[str, bytes | str | int],
        *,
        limit_bytes: int = 0,
        data: bytes = b"",
    ) -> list[bytes]:
        self._check()
        payload = pack_fields({"path": path, **fields})
        reply = await self._channel.ask(kind, payload, limit_bytes=limit_bytes, data=data)
        if reply.failure is not None:
            number = reply.failure.number
            if kind == Kind.LIST and number == errno.ENOTDIR:
                number = errno.EISDIR
            raise file_error(path, number, reply.failure.text, sandbox_id=self.id)
        return reply.chunks

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
        fields = {"offset": offset, "limit": max_bytes, **self._as_user(user)}
        chunks = await self._ask_about(Kind.READ, path, fields, limit_bytes=max_bytes)
        if sum(map(len, chunks)) < JOIN_HERE_BYTES:
            return b"".join(chunks)
        return await anyio.to_thread.run_sync(b"".join, chunks, limiter=self._threads)

    def _as_user(self, user: str | None) -> dict[str, bytes | str | int]:
        """Return the field that makes a file operation happen as ``user``."""
        self._check(user=user)
        return {} if user is None else {"user": user}

    async def _read_trusted(self, path: str, *, max_bytes: int, offset: int) -> bytes:
        raise self._unsupported(Capability.ENGINE_ACCESS)

    async def write(
        self, path: str, data: bytes, *, mode: int | None = None, user: str | None = None
    ) -> None:
        """Write a file atomically; see :meth:`hermes_rl.sandbox.Sandbox.write`."""
        await self._settle()
        fields = self._as_user(user)
        if mode is not None:
            fields["mode"] = mode
        if len(data) <= WRITE_INLINE_BYTES:
            await self._ask_about(Kind.WRITE, path, {**fields, "data": data})
        else:
            await self._ask_about(Kind.WRITE, path, {**fields, "more": 1}, data=data)

    async def list(self, path: str, *, user: str | None = None) -> list[DirEntry]:
        """List a directory; see :meth:`hermes_rl.sandbox.Sandbox.list`."""
        await self._settle()
        fields = self._as_user(user)
        chunks = await self._ask_about(Kind.LIST, path, fields, limit_bytes=LIST_LIMIT_BYTES)
        entries: list[DirEntry] = []
        try:
            for entry in _dir_entries(b"".join(chunks)):
                entries.append(entry)
                if len(entries) % ENTRIES_PER_TURN == 0:
                    await checkpoint()
        except FrameError as error:
            await self._channel.refuse(error)
        return entries

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


def _dir_entries(data: bytes) -> Iterator[DirEntry]:
    """Read a list of entries, each of five items.

    Raises:
        FrameError: It is none, or longer than one may be.
    """
    items = iterate_list(data)
    for count, name in enumerate(items):
        if count >= MAX_LIST_ENTRIES:
            raise FrameError("more directory entries than were asked for")
        try:
            kind, size = _KINDS[next(items)], int(next(items))
            mtime_ns, mode = int(next(items)), int(next(items))
            entry = DirEntry(to_text(name), kind, size, mtime_ns / 1e9, mode)
        except (ArithmeticError, KeyError, StopIteration, ValueError) as error:
            raise FrameError(f"a malformed directory entry ({error!r})") from None
        if not 0 <= size < 1 << 63:
            raise FrameError("a file of impossible size")
        yield entry
