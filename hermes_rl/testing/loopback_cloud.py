"""What the loopback clouds share: the frame of a server, a log of what happened, lifetimes."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from typing import IO, Generic, Self, TypedDict, TypeVar, Unpack

import anyio
import orjson
from anyio.abc import TaskGroup

from hermes_rl.testing.loopback_boxes import Box

__all__ = [
    "CloudLog",
    "Event",
    "Fault",
    "Faults",
    "Lives",
    "LoopbackCloud",
    "LoopbackSandbox",
    "ServerOptions",
]

F = TypeVar("F")
REAP_INTERVAL_S = 0.2


@dataclass(slots=True, frozen=True)
class Event:
    """Something that happened at the server.

    Attributes:
        at_s: Unix time.
        kind: The call, or ``created``, ``gone``.
        sandbox: Its id, if it is about one.
        detail: A word or two.
    """

    at_s: float
    kind: str
    sandbox: str = ""
    detail: str = ""


class CloudLog:
    """The events, oldest first; also written as lines of JSON, for those who outlive us.

    Args:
        file: Where to; None = nowhere.
    """

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self.events: list[Event] = []
        self._file = file

    def add(self, kind: str, sandbox: str = "", detail: str = "") -> None:
        """Record an event that happens now."""
        event = Event(time.time(), kind, sandbox, detail)
        self.events.append(event)
        if self._file is not None:
            self._file.write(orjson.dumps(event) + b"\n")
            self._file.flush()

    def times(self, kind: str) -> list[float]:
        """Return when events of one kind happened."""
        return [event.at_s for event in self.events if event.kind == kind]

    def most_within(self, kind: str, window_s: float) -> int:
        """Return the largest number of such events in any window of that length."""
        times = self.times(kind)
        return max((sum(1 for t in times if s <= t < s + window_s) for s in times), default=0)


@dataclass(slots=True, frozen=True, kw_only=True)
class Fault(Generic[F]):
    """What a call does instead of working.

    Attributes:
        delay_s: Wait before anything else.
        refusal: What is answered; None = the call goes on after the delay.
    """

    delay_s: float = 0.0
    refusal: F | None = None


class Faults(Generic[F]):
    """Faults to come, by call; each is used up by one call.

    Attributes:
        every_call_s: How much longer every call takes.
    """

    def __init__(self) -> None:
        self.every_call_s = 0.0
        self._queued: dict[str, deque[Fault[F]]] = defaultdict(deque)

    def add(self, call: str, fault: Fault[F], *, times: int = 1) -> None:
        """Let the next ``times`` calls of this name meet ``fault``."""
        self._queued[call].extend([fault] * times)

    def clear(self) -> None:
        """Forget those that are still to come."""
        self._queued.clear()

    async def meet(self, call: str) -> F | None:
        """Return what this call must refuse with, after its delay."""
        await anyio.sleep(self.every_call_s)
        queued = self._queued.get(call)
        if not queued:
            return None
        fault = queued.popleft()
        await anyio.sleep(fault.delay_s)
        return fault.refusal


@dataclass(slots=True)
class LoopbackSandbox:
    """What a cloud knows of a sandbox whatever its vendor.

    Attributes:
        id: As the vendor writes them.
        box: Where it runs.
        labels: Or tags.
        expires_at_s: Unix time of its end.
        idle_s: Seconds without use after which it ends; None = never.
        used_at_s: Last use, Unix time.
        end: Why it ended; "" = it has not.
    """

    id: str
    box: Box
    labels: dict[str, str]
    expires_at_s: float
    idle_s: float | None
    used_at_s: float
    end: str = ""
    ended: anyio.Event = field(default_factory=anyio.Event)


S = TypeVar("S", bound=LoopbackSandbox)


class Lives(Generic[S]):
    """The sandboxes of one server, and their ends: ``timeout``, ``idle``, ``exited``, ``deleted``.

    Args:
        log: Gets ``created`` and ``gone``.
        in_use: Whether something runs in a sandbox that keeps it from idling.
    """

    def __init__(self, log: CloudLog, *, in_use: Callable[[S], bool]) -> None:
        self.sandboxes: dict[str, S] = {}
        self._log = log
        self._in_use = in_use

    @property
    def alive(self) -> list[S]:
        """Those that have not ended."""
        return [each for each in self.sandboxes.values() if not each.end]

    def add(self, sandbox: S) -> None:
        """Begin to watch one."""
        self.sandboxes[sandbox.id] = sandbox
        self._log.add("created", sandbox.id)

    async def end(self, sandbox: S, why: str) -> None:
        """End one; nothing if it has ended already."""
        if sandbox.end:
            return
        sandbox.end = why
        with anyio.CancelScope(shield=True):
            await sandbox.box.destroy()
        self._log.add("gone", sandbox.id, why)
        sandbox.ended.set()

    def _due(self, sandbox: S, now_s: float) -> str:
        if now_s >= sandbox.expires_at_s:
            return "timeout"
        if self._in_use(sandbox):
            sandbox.used_at_s = now_s
        elif sandbox.idle_s is not None and now_s - sandbox.used_at_s >= sandbox.idle_s:
            return "idle"
        return ""

    async def watch(self) -> None:
        """End what is due, until cancelled."""
        while True:
            async with anyio.create_task_group() as tasks:
                for sandbox in self.alive:
                    if why := self._due(sandbox, time.time()):
                        tasks.start_soon(self.end, sandbox, why)
            await anyio.sleep(REAP_INTERVAL_S)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Watch while the context is open; end every sandbox at its end."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.watch)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    async with anyio.create_task_group() as ending:
                        for sandbox in self.alive:
                            ending.start_soon(self.end, sandbox, "server closed")


class ServerOptions(TypedDict, total=False):
    """What any of the servers is started with; see :class:`LoopbackCloud`."""

    port: int
    in_containers: bool
    log: CloudLog | None
    create_s: float
    minute_s: float


class LoopbackCloud(ABC, Generic[S, F]):
    """A server that plays a cloud. Enter it with ``async with``.

    Args:
        in_use: Whether something runs in a sandbox that keeps it from idling.
        options: ``port``, 0 = any that is free; ``in_containers``: each sandbox is a Docker
            container and images are real, else processes; ``log``: where events go; ``create_s``:
            how long a creation takes at least; ``minute_s``: length of a minute in the sandboxes'
            timers.
    """

    tasks: TaskGroup

    def __init__(
        self, *, in_use: Callable[[S], bool] = lambda _: False, **options: Unpack[ServerOptions]
    ) -> None:
        self.port = options.get("port", 0)
        self.in_containers = options.get("in_containers", False)
        self.log = options.get("log") or CloudLog()
        self.create_s = options.get("create_s", 0.0)
        self.minute_s = options.get("minute_s", 60.0)
        self.faults: Faults[F] = Faults()
        self.lives: Lives[S] = Lives(self.log, in_use=in_use)
        self._stack = AsyncExitStack()

    @property
    @abstractmethod
    def url(self) -> str:
        """Where the SDK finds it."""

    @abstractmethod
    def variables(self) -> dict[str, str]:
        """Return the environment variables that point the SDK here and let it in."""

    @abstractmethod
    def _serving(self) -> AbstractAsyncContextManager[None]:
        """Listen while the context is open; end every sandbox at its end."""

    @contextmanager
    def environment(self) -> Iterator[dict[str, str]]:
        """Point the SDK of this process here; yields the variables, for other processes."""
        wanted = self.variables()
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield wanted
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    async def __aenter__(self) -> Self:
        """Listen."""
        await self._stack.enter_async_context(self._serving())
        return self

    async def __aexit__(self, *_: object) -> None:
        """End every sandbox and stop."""
        await self._stack.aclose()
