"""Thread mode: hermes-agent's tools in threads of this process.

For tools that this process itself has registered with hermes-agent, and where no second process
may run. What they keep per process is then kept in this one: HERMES_HOME and two more variables
are set when hermes-agent is imported, and more than 1,024 open files break some of them.
"""

from __future__ import annotations

import asyncio
import atexit
import copy
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from hermes_rl.errors import ConfigError, MissingExtra, ToolFault
from hermes_rl.legacy.in_worker.calls import Calls
from hermes_rl.legacy.in_worker.frames import Kind
from hermes_rl.legacy.in_worker.hermes import Hermes
from hermes_rl.legacy.in_worker.home import ConfigurationError, make_home, set_environment
from hermes_rl.legacy.in_worker.threads import BoundedThreads
from hermes_rl.legacy.in_worker.worker import survey as survey_of
from hermes_rl.legacy.link import Link
from hermes_rl.legacy.settings import LegacySettings, is_installed_here
from hermes_rl.types import JSONObject

__all__ = ["ThreadLink", "load", "loaded", "survey"]

_lock = threading.Lock()
_hermes: Hermes | None = None
_source: str | None = None


def loaded() -> Hermes | None:
    """Return hermes-agent if it is imported already."""
    return _hermes


def load(source: str | None) -> Hermes:
    """Import hermes-agent in a private home, once per process. Blocks for seconds.

    Args:
        source: Directory whose config.yaml and skills it sees; None = neither.

    Raises:
        MissingExtra: It is not installed.
        ConfigError: It is imported already with another ``source``, or cannot be used.
    """
    global _hermes, _source
    if not is_installed_here():
        raise MissingExtra.of("Running hermes-agent's tools in this process", "hermes")
    with _lock:
        if _hermes is None:
            _hermes, _source = _import(source), source
        elif source != _source:
            raise ConfigError(
                f"hermes-agent is imported already with legacy_home {_source}; in thread mode "
                f"one process has one ({source} is another)."
            )
        return _hermes


def _import(source: str | None) -> Hermes:
    directory = Path(tempfile.mkdtemp(prefix="hermes-rl-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    home = directory / "home"
    try:
        make_home(home, Path(source).expanduser() if source else None)
        set_environment(os.environ, home)
        return Hermes(home)
    except (ConfigurationError, ImportError) as error:
        raise ConfigError(f"hermes-agent cannot be used in this process: {error}") from error


async def survey(settings: LegacySettings, questions: JSONObject) -> Mapping[str, Any]:
    """Answer what a worker process would, in a thread.

    Raises:
        ConfigError: See :func:`load`.
    """

    def answer() -> Mapping[str, Any]:
        return survey_of(load(settings.home), questions["known"], questions["wanted"])

    return await anyio.to_thread.run_sync(answer, limiter=anyio.CapacityLimiter(1))


class ThreadLink(Link):
    """See :class:`~hermes_rl.legacy.link.Link`. ``threads`` are ended with it."""

    def __init__(self, hermes: Hermes, threads: BoundedThreads) -> None:
        super().__init__(threads.max_threads)
        self.home = str(hermes.home)
        self._loop = asyncio.get_running_loop()
        self._calls = Calls(hermes, threads, self._reply)
        self._stopped = anyio.Event()
        self._ready.set()

    @classmethod
    async def start(cls, settings: LegacySettings) -> ThreadLink:
        """Import hermes-agent, if that is still to do, and start.

        Raises:
            ConfigError: See :func:`load`.
        """
        limiter = anyio.CapacityLimiter(1)
        hermes = await anyio.to_thread.run_sync(load, settings.home, limiter=limiter)
        return cls(hermes, BoundedThreads(settings.threads, "hermes-tool"))

    def _reply(self, kind: Kind, id: int, payload: bytes) -> None:
        """Runs in a tool's thread; the loop may be closed when the last of them return."""
        try:
            self._loop.call_soon_threadsafe(self._received, kind, id, payload)
        except RuntimeError:
            return

    async def _send(self, kind: Kind, id: int, message: JSONObject) -> None:
        if kind == Kind.CALL:
            self._calls.start(id, copy.deepcopy(message))  # Tools change what they are given.
        elif kind == Kind.CANCEL:
            self._calls.cancel(id)
        elif kind == Kind.END:
            self._calls.end(id, message["task"])
        await anyio.lowlevel.checkpoint()

    async def run(self) -> None:
        """Wait for the end: answers come by themselves."""
        await self._stopped.wait()

    async def stop(self) -> None:
        """Interrupt and free everything; what does not return in time is left to its threads."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._calls.stop, limiter=anyio.CapacityLimiter(1))
            self._lost(ToolFault("hermes-agent's tools were stopped."))
