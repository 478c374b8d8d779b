"""A sandbox in a container: an outpost's, plus what only the container engine can do.

What goes through the engine (``trusted=True``, :meth:`pause`, :meth:`changes`) goes around every
process inside the sandbox: the engine reads the file system itself and reports exit codes itself.
"""

from __future__ import annotations

import errno
import posixpath
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path

import anyio
import anyio.lowlevel
from anyio import Path as AsyncPath  # anyio loads it at first use: not on the event loop.

from hermes_rl.backends.admission import Turn
from hermes_rl.backends.docker_archive import first_file, window
from hermes_rl.backends.docker_attach import AttachTransport
from hermes_rl.backends.docker_container import ContainerPlan
from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.docker_errors import TIMED_OUT, EngineFailure, sandbox_error, translated
from hermes_rl.backends.docker_fate import FateWatch, gone
from hermes_rl.backends.docker_upload import LARGE_BYTES, Place, put, size_of
from hermes_rl.backends.outpost.channel import Loss
from hermes_rl.backends.outpost.frames import Kind, pack_fields
from hermes_rl.backends.outpost.outpost import MAX_DATABASE_BYTES
from hermes_rl.backends.outpost.process import RunRequest
from hermes_rl.backends.outpost.sandbox import OutpostSandbox
from hermes_rl.backends.runtime import MOUNT_POINT
from hermes_rl.errors import (
    ChannelLost,
    FileError,
    SandboxError,
    SandboxFileTooLarge,
    SandboxGone,
    SandboxIsADirectory,
)
from hermes_rl.sandbox import TIMEOUT_EXIT_CODE, UNFINISHED_SEARCH, Change, ExecResult

__all__ = ["PAUSE_LIMIT_S", "DockerSandbox"]

PAUSE_LIMIT_S = 5.0
"""Longest time a sandbox stays frozen."""
ENGINE_SLACK_S = 15.0
"""What the engine may need beyond a trusted command's own deadline to start and report it."""
PLACE_TIMEOUT_S = 30.0
SEARCH_TIMEOUT_S = 60.0
"""For one search for rewritten files."""
SEARCH_BYTES = 4 << 20
"""Kept of what a search found: 60,000 paths of 70 bytes."""
_NO_DEADLINE_S = 7 * 86400.0


CHANGES_AT_ONCE = 5000
PATHS_AT_ONCE_BYTES = 64 * 1024
"""Looked at between two steps of the event loop: about 1 ms."""


class DockerSandbox(OutpostSandbox):
    """One container.

    Args:
        container: Its id.
        plan: What it was made from.
        engine: The daemon.
        fates: Tells why it ended.
        remove: Removes it; never raises.
        transport: The stream of its main process.
        transfers: Limits uploads and downloads.
    """

    def __init__(
        self,
        *,
        container: str,
        plan: ContainerPlan,
        engine: DockerEngine,
        fates: FateWatch,
        remove: Callable[[str], Awaitable[None]],
        transport: AttachTransport,
        transfers: anyio.Semaphore,
    ) -> None:
        super().__init__(
            id=container[:12],
            backend="docker",
            transport=transport,
            capabilities=plan.capabilities,
            transfers=transfers,
        )
        self.container = container
        self._plan = plan
        self._engine = engine
        self._fates = fates
        self._remove_container = remove
        self._deadline_s = time.monotonic() + plan.spec.lease_s

    # Life

    async def _remove(self) -> None:
        await self._remove_container(self.container)
        self._fates.forget(self.container)

    async def _explain(self, loss: Loss) -> SandboxError:
        """Look at the container once; whatever is left of it is of no use any more."""
        if self._closing:
            return await super()._explain(loss)
        try:
            fate = await self._fates.ending(self.container)
        except EngineFailure as failure:
            return SandboxGone(
                f"The sandbox's stream ended ({loss.reason}) and the daemon cannot say why: "
                f"{failure}.",
                backend="docker",
                sandbox_id=self.id,
            )
        is_running = not fate.ended.is_set() and not fate.removed
        if is_running:
            await self._remove_container(self.container)
        if is_running or loss.is_by_agent:
            return self._unusable(loss.reason, by_agent=loss.is_by_agent)
        expired = loss.bye == "expired" or time.monotonic() >= self._deadline_s
        return gone(fate, sandbox_id=self.id, expired=expired)

    def _unusable(self, reason: str, *, by_agent: bool) -> SandboxGone:
        """Nothing sensible comes from it any more: forged frames, or silence."""
        return SandboxGone(
            f"Sandbox {self.id} was removed: {reason}.",
            cause="killed" if by_agent else "unknown",
            by_agent=by_agent,
            backend="docker",
            sandbox_id=self.id,
        )

    # What the engine does

    def pause(self) -> AbstractAsyncContextManager[None]:
        """Freeze all processes while the context is open.

        Raises:
            SandboxError: The body took longer than :data:`PAUSE_LIMIT_S`; it was cancelled.
        """
        return self._paused()

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        await self._check_engine_access()
        self._channel.is_paused = True
        try:
            with translated("use", sandbox_id=self.id):
                await self._engine.pause(self.container)
            with anyio.move_on_after(PAUSE_LIMIT_S) as scope:
                yield
        finally:
            await self._unpause()
        if scope.cancelled_caught:
            raise SandboxError(
                f"Sandbox {self.id} was paused longer than {PAUSE_LIMIT_S:g} s; it goes on.",
                backend="docker",
                sandbox_id=self.id,
            )

    async def _unpause(self) -> None:
        """Let it go on, whatever state it is in; one that is gone is not our concern here."""
        with anyio.move_on_after(PAUSE_LIMIT_S, shield=True):
            with suppress(EngineFailure):
                await self._engine.unpause(self.container)
        self._channel.is_paused = False

    async def _check_engine_access(self) -> None:
        """Refuse what would make the engine wait for the agent, or read without end.

        The engine reads the sandbox's tables of users and groups for every command and file,
        whatever user it is told. A pipe there never answers: the container could not even be
        removed any more. Frozen, the sandbox can neither answer nor change; it was asked before.
        """
        self._check()
        if self._channel.is_paused:
            return
        for path in ("/etc/passwd", "/etc/group"):
            fields = {"path": path, "offset": MAX_DATABASE_BYTES, "limit": 0, "user": "0"}
            reply = await self._channel.ask(Kind.READ, pack_fields(fields))
            if reply.failure is not None and reply.failure.number in (errno.EINVAL, errno.EFBIG):
                await self._remove_container(self.container)
                reason = f"its {path} is nothing that the engine could read"
                raise self._unusable(reason, by_agent=True)

    async def changes(self, *, suspects: str = "") -> Sequence[Change]:
        """List what differs from the image, without the mount point of our interpreter."""
        self._check()
        with translated("use", sandbox_id=self.id):
            changes = await self._engine.changes(self.container, without=MOUNT_POINT)
            if suspects:
                changes += await self._rewritten(suspects, changes)
        return changes

    async def _rewritten(self, suspects: str, known: Sequence[Change]) -> list[Change]:
        """Find what the engine takes for unchanged; by our interpreter, started by the engine.

        Whatever keeps the search from its end is in the sandbox, where an agent may have put it:
        that is told as a change, because another try must not be what an agent gets for it.
        """
        await self._check_engine_access()
        created = (await self._engine.inspect(self.container))["Created"]
        since_s = datetime.fromisoformat(created).timestamp()
        program = self._plan.runtime.argv("rewritten", str(since_s), suspects)
        request = RunRequest(
            cmd=program, limit_bytes=SEARCH_BYTES, timeout_s=SEARCH_TIMEOUT_S, user="0", cwd="/"
        )
        search = _TrustedRun(self._engine, self.container, self._plan, request)
        done = await search.run(program, is_ours=True)
        if done.exit_code != 0 or done.stdout_total > len(done.stdout):
            return [Change(UNFINISHED_SEARCH, "modified")]
        paths = await _ended_by_nul(done.stdout)
        for start in range(0, len(known), CHANGES_AT_ONCE):
            paths -= {change.path for change in known[start : start + CHANGES_AT_ONCE]}
            await anyio.lowlevel.checkpoint()
        changes: list[Change] = []
        rest = iter(paths)
        while some := [Change(path, "modified") for path in islice(rest, CHANGES_AT_ONCE)]:
            changes += some
            await anyio.lowlevel.checkpoint()
        return changes

    async def _read_trusted(self, path: str, *, max_bytes: int, offset: int) -> bytes:
        """Read a regular file through the engine. A link is refused, not followed."""
        await self._check_engine_access()
        full = posixpath.join(self._plan.workdir, self._without_tilde(path))
        with translated("file", sandbox_id=self.id, path=path):
            async with self._engine.get_archive(self.container, full) as (stat, chunks):
                if stat.is_directory:
                    raise SandboxIsADirectory(f"{path} is a directory.", path=path)
                if not stat.is_regular:
                    what = "a link" if stat.is_link else "no regular file"
                    raise FileError(f"{path} is {what}.", path=path, sandbox_id=self.id)
                data: bytes | None = None
                try:
                    if stat.size_bytes - offset <= max_bytes:
                        data = await window(first_file(chunks), offset=offset, max_bytes=max_bytes)
                except ValueError as error:
                    raise SandboxError(f"Reading {path} from the engine: {error}.") from error
        if data is None:
            raise SandboxFileTooLarge(f"{path} exceeds {max_bytes} bytes.", path=path)
        return data

    async def upload(self, local: Path, remote: str, *, user: str | None = None) -> None:
        """Copy a local file or directory; what is large goes through the engine where it can."""
        self._check(user=user)
        place = await self._place_for(local, remote, self._plan.user if user is None else user)
        if place is None:
            await super().upload(local, remote, user=user)
            return
        await self._check_engine_access()
        async with self._transfers:
            with translated("file", sandbox_id=self.id, path=remote):
                await put(self._engine, self.container, local, place, threads=self._threads)

    async def _place_for(self, local: Path, remote: str, user: str) -> Place | None:
        """Where the engine may put an upload of ``user``; None if the outpost must do it."""
        plan = self._plan
        path = self._without_tilde(remote)
        if plan.options.read_only or user not in ("", "0", "root") or path[:1] != "/":
            return None
        is_directory = await AsyncPath(local).is_dir()
        if await size_of(local, threads=self._threads) < LARGE_BYTES:
            return None
        kind = "directory" if is_directory else "file"
        question = plan.runtime.argv("place", path, kind)
        answer = await self.exec(question, timeout_s=PLACE_TIMEOUT_S, session=None, user="0")
        return Place.parse(answer.stdout, is_directory=is_directory)

    def _without_tilde(self, path: str) -> str:
        return self.home + path[1:] if path == "~" or path.startswith("~/") else path

    async def _exec_trusted(self, request: RunRequest) -> ExecResult:
        """Run a command by the engine, which also says how it ended. Stateless."""
        await self._check_engine_access()
        shell = self._hello.shell if self._hello else ""
        if isinstance(request.cmd, str) and not shell:
            message = b"hermes: the image has no shell: pass an argument list\n"
            return ExecResult(exit_code=127, stderr=message, stderr_total=len(message))
        command = [shell, "-c", request.cmd] if isinstance(request.cmd, str) else list(request.cmd)
        done = await _TrustedRun(self._engine, self.container, self._plan, request).run(command)
        if done.signal == signal.SIGKILL:
            await self._check_alive()
        return done

    async def _check_alive(self) -> None:
        """Raise if the sandbox has ended, which the engine tells as the death of its commands."""
        with suppress(ChannelLost):  # it lives, and is busy
            await self._channel.ping(timeout_s=ENGINE_SLACK_S)


async def _ended_by_nul(data: bytes) -> set[str]:
    """Split into texts, in pieces: an agent may have made a million."""
    texts: set[str] = set()
    start = 0
    while start < len(data):
        end = data.find(b"\0", min(start + PATHS_AT_ONCE_BYTES, len(data) - 1)) + 1 or len(data)
        texts.update(data[start : end - 1].decode("utf-8", "replace").split("\0"))
        start = end
        await anyio.lowlevel.checkpoint()
    return texts


class _TrustedRun:
    """One command run by the engine under our deadline program; its output is kept here."""

    def __init__(
        self, engine: DockerEngine, container: str, plan: ContainerPlan, request: RunRequest
    ) -> None:
        self._engine = engine
        self._container = container
        self._plan = plan
        self._request = request
        self._out = _HeadAndTail(request.limit_bytes)
        self._err = self._out if request.merge_stderr else _HeadAndTail(request.limit_bytes)

    async def run(self, command: Sequence[str], *, is_ours: bool = False) -> ExecResult:
        """Run ``command``; the sandbox's settings of the loader are not for what ``is_ours``.

        The wait for a turn to start does not count.
        """
        async with self._engine.starts.turn() as turn:
            return await self._run(command, turn, is_ours=is_ours)

    async def _run(self, command: Sequence[str], turn: Turn, *, is_ours: bool) -> ExecResult:
        request, plan = self._request, self._plan
        timeout_s = _NO_DEADLINE_S if request.timeout_s is None else request.timeout_s
        stdin = request.stdin or b""
        env = {**plan.env, **request.env}
        # As an argument, what is meant for the loader does not apply to our own interpreter.
        preloads = {name: value for name, value in env.items() if name.startswith("LD_")}
        words = [] if is_ours else [f"{name}={value}" for name, value in preloads.items()]
        program = plan.runtime.argv(
            "deadline", str(timeout_s), str(len(stdin)), *words, "--", *command
        )
        start_s = time.monotonic()
        try:
            code = await self._engine.run(
                self._container,
                program,
                self._take,
                user=request.user or plan.user or "0",
                workdir=posixpath.join(plan.workdir, request.cwd or ""),
                env={name: request.env[name] for name in request.env if name not in preloads},
                stdin=stdin,
                timeout_s=timeout_s + ENGINE_SLACK_S,
                on_start=turn.give_back,
            )
        except EngineFailure as failure:
            if failure.status != TIMED_OUT or time.monotonic() - start_s < timeout_s:
                raise sandbox_error(failure, "use", sandbox_id=self._container[:12]) from failure
            code = TIMEOUT_EXIT_CODE
        return self._result(code, time.monotonic() - start_s)

    def _take(self, fd: int, data: bytes) -> None:
        (self._out if fd == 1 else self._err).add(data)

    def _result(self, code: int, duration_s: float) -> ExecResult:
        limit_s = self._request.timeout_s
        err = self._err if self._err is not self._out else _HeadAndTail(0)
        return ExecResult(
            exit_code=code,
            stdout=self._out.kept(),
            stderr=err.kept(),
            timed_out=code == TIMEOUT_EXIT_CODE and limit_s is not None and duration_s >= limit_s,
            signal=code - 128 if code > 128 else None,
            stdout_total=self._out.total,
            stderr_total=err.total,
            stdout_head=self._out.head_bytes,
            stderr_head=err.head_bytes,
            duration_s=duration_s,
        )


class _HeadAndTail:
    """The first 40 % and the last 60 % of at most ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit * 2 // 5
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    @property
    def head_bytes(self) -> int:
        return len(self._head)

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._tail_limit:
            self._trim()

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_limit)]

    def kept(self) -> bytes:
        self._trim()
        return bytes(self._head + self._tail)
