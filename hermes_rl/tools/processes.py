"""Background processes of one rollout, and what the model is to be told about them.

Output is kept as a rolling tail by the sandbox; nothing here polls. What a process was asked to
report (its end, a pattern in its output) is looked for when a tool result is about to go to the
model, and attached to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import anyio

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import Process, Sandbox
from hermes_rl.tools.output import decode_tail
from hermes_rl.types import JSONObject

__all__ = ["TAIL_BYTES", "BackgroundProcess", "ProcessTable"]

TAIL_BYTES = 200_000
"""Output kept per background process; older bytes are counted and dropped."""
CLOSE_TIMEOUT_S = 5.0
"""For ending all processes of a table; closing the sandbox ends what is left."""
NOTICE_CHARS = 2_000
"""Output shown in a notice."""
MAX_MATCHED_LINES = 20
"""Matching lines shown per process and notice."""


@dataclass(slots=True, kw_only=True)
class BackgroundProcess:
    """One background process.

    Attributes:
        session_id: What the model calls it; unique within the rollout.
        command: As given.
        cwd: Directory it was started in, None if unknown.
        process: The sandbox's handle.
        started_at_s: Wall clock.
        owner: Shell session that started it.
        notify_on_complete: Tell the model when it ends.
        watch_patterns: Tell the model when a line holds one of these texts.
        killed: Ended by ``process(action="kill")``.
    """

    session_id: str
    command: str
    cwd: str | None
    process: Process
    context: AbstractAsyncContextManager[Process]
    started_at_s: float
    owner: str
    notify_on_complete: bool = False
    watch_patterns: Sequence[str] = ()
    killed: bool = False
    _scanned_bytes: int = field(default=0, repr=False)
    _told_end: bool = field(default=False, repr=False)

    @property
    def exit_code(self) -> int | None:
        """Exit code, None while it runs."""
        result = self.process.result
        return None if result is None else result.exit_code

    def output(self, max_chars: int) -> str:
        """Return the end of its output."""
        return decode_tail(self.process.tail, max_chars)

    def mark_told(self) -> None:
        """Note that the model has been told the end in another way."""
        if self.exit_code is not None:
            self._told_end = True

    def notices(self) -> Iterator[JSONObject]:
        """Yield what the model is to be told and has not been told yet."""
        matched = self._new_matches()
        if matched:
            yield {
                "type": "watch_match",
                "session_id": self.session_id,
                "command": self.command[:200],
                "matches": matched[:MAX_MATCHED_LINES],
                "suppressed": max(0, len(matched) - MAX_MATCHED_LINES),
            }
        if self.notify_on_complete and self.exit_code is not None and not self._told_end:
            self._told_end = True
            yield {
                "type": "completion",
                "session_id": self.session_id,
                "command": self.command[:200],
                "exit_code": self.exit_code,
                "output": self.output(NOTICE_CHARS),
            }

    def _new_matches(self) -> list[JSONObject]:
        """Find watched texts in the complete lines written since the last look."""
        if not self.watch_patterns:
            return []
        found: list[JSONObject] = []
        for line in self._unseen_lines():
            pattern = next((text for text in self.watch_patterns if text in line), None)
            if pattern is not None:
                found.append({"pattern": pattern, "line": line[:500]})
        return found

    def _unseen_lines(self) -> list[str]:
        """Return the lines since the last look that are still kept; the last one when it ends."""
        total, tail = self.process.total_bytes, self.process.tail
        unseen = total - self._scanned_bytes
        data = tail[-unseen:] if 0 < unseen < len(tail) else tail if unseen else b""
        self._scanned_bytes = total
        if self.exit_code is None:
            complete = data.rfind(b"\n") + 1
            self._scanned_bytes -= len(data) - complete
            data = data[:complete]
        return data.decode("utf-8", "replace").splitlines()


class ProcessTable:
    """The background processes of one rollout.

    Args:
        sandbox: Runs them.
        limit: Processes kept, running or ended; the oldest ended one makes room for a new one.
        clock: Wall clock in seconds.
    """

    def __init__(
        self, sandbox: Sandbox, *, limit: int = 32, clock: Callable[[], float] = time.time
    ) -> None:
        self.clock = clock
        self._sandbox = sandbox
        self.limit = limit
        self._count = 0
        self._processes: dict[str, BackgroundProcess] = {}

    def __iter__(self) -> Iterator[BackgroundProcess]:
        return iter(list(self._processes.values()))

    def get(self, session_id: str) -> BackgroundProcess | None:
        """Return the process of that id, None if there is none."""
        return self._processes.get(session_id)

    async def start(
        self,
        command: str,
        *,
        session: str,
        cwd: str | None = None,
        shown_cwd: str | None = None,
        user: str | None = None,
        pty: bool = False,
        notify_on_complete: bool = False,
        watch_patterns: Sequence[str] = (),
    ) -> BackgroundProcess | None:
        """Start a process from the current state of ``session``; None = too many run already."""
        if not await self._make_room():
            return None
        context = self._sandbox.stream(
            command,
            session=session,
            cwd=cwd,
            user=user,
            merge_stderr=True,
            pty=pty,
            tail_bytes=TAIL_BYTES,
        )
        process = await context.__aenter__()
        self._count += 1
        started = BackgroundProcess(
            session_id=f"proc_{self._count:012x}",
            command=command,
            cwd=cwd or shown_cwd,
            process=process,
            context=context,
            started_at_s=self.clock(),
            owner=session,
            notify_on_complete=notify_on_complete,
            watch_patterns=tuple(watch_patterns),
        )
        self._processes[started.session_id] = started
        return started

    async def _make_room(self) -> bool:
        if len(self._processes) < self.limit:
            return True
        for process in self:
            result = process.process.result
            # Children that outlived their command would be killed with its handle.
            if result is not None and not result.background:
                await self._forget(process)
                return True
        return False

    async def _forget(self, process: BackgroundProcess) -> None:
        self._processes.pop(process.session_id, None)
        await process.context.__aexit__(None, None, None)

    def notices(self) -> list[JSONObject]:
        """Return what the model is to be told now; each thing once."""
        return [notice for process in self for notice in process.notices()]

    async def aclose(self, owner: str | None = None) -> None:
        """Kill the processes of ``owner`` (None = all) and free their handles. Idempotent.

        Shielded from cancellation, bounded; a sandbox that is gone has none any more.
        """
        doomed = [process for process in self if owner in (None, process.owner)]
        if not doomed:
            return
        with anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True):
            async with anyio.create_task_group() as group:
                for process in doomed:
                    group.start_soon(self._forget_quietly, process)

    async def _forget_quietly(self, process: BackgroundProcess) -> None:
        try:
            await self._forget(process)
        except SandboxError:
            # Its processes died with it.
            return
