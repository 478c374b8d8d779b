"""What reward code may do in the agent's sandbox.

State is as the agent left it: files, processes, browser tabs. Commands run in a session of their
own, with the sandbox's original environment and none of the agent's functions or aliases,
starting in the agent's last directory; ``session="agent"`` opts into the agent's own.

Every method of :class:`ToolContext` returns a :class:`ContextCall`, which does nothing until it
is awaited. Using one as if it were its result raises at once, and one that was never awaited is
reported by :meth:`ToolContext.pending`: a forgotten ``await`` must not pass in silence.

:func:`run_sync_reward` runs reward code that is not async, with a :class:`SyncToolContext` whose
methods block and return the results themselves.

Failures inside the sandbox (a missing file, a refused write) are results with an ``error`` or
``success: False``; a sandbox that is gone raises.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import orjson

from hermes_rl.context_call import DEFAULT_TIMEOUT_S, ContextCall
from hermes_rl.context_sync import SyncToolContext, run_sync_reward
from hermes_rl.context_transfers import Transfers
from hermes_rl.errors import FileError, MissingExtra, RewardError, Unsupported
from hermes_rl.sandbox import Sandbox
from hermes_rl.tools.dispatcher import ToolDispatcher
from hermes_rl.tools.native import NATIVE_TOOLS
from hermes_rl.tools.output import encode_json
from hermes_rl.tools.protocol import Dispatcher
from hermes_rl.types import JSONObject

__all__ = ["ContextCall", "SyncToolContext", "ToolContext", "run_sync_reward"]

T = TypeVar("T")

REWARD_SESSION = "reward"
"""Name of the shell session of reward code."""
AGENT_SESSION = "agent"
MAX_READ_BYTES = 8 << 20
"""Of ``read_file``; bigger files are for ``download_file``."""


class ToolContext:
    """Awaitable access to the sandbox as the agent left it.

    Args:
        sandbox: The rollout's sandbox.
        tools: The rollout's dispatcher; reward code reaches every tool it knows, enabled for the
            agent or not. Any other :class:`Dispatcher` serves for the tools that are not native.
        limit_s: See below.
        artifacts: See below.
        open_spare: Opens another sandbox like this one when it was made.

    Attributes:
        sandbox: The sandbox itself, for what the methods here do not cover.
        tools: The rollout's dispatcher.
        limit_s: Seconds that the reward's own work may take, as task and configuration have it;
            what surrounds it has the task's margin on top. None = not limited.
        artifacts: Directory on the host for files to keep of this rollout, to be made by whoever
            writes there; None = nothing is kept.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        tools: Dispatcher,
        *,
        limit_s: float | None = None,
        artifacts: Path | None = None,
        open_spare: Callable[[], AbstractAsyncContextManager[Sandbox]] | None = None,
    ) -> None:
        self.sandbox = sandbox
        self.tools = tools
        self.limit_s = limit_s
        self.artifacts = artifacts
        self._open_spare = open_spare
        self._dispatchers: dict[str, ToolDispatcher] = {}
        self._transfers = Transfers(sandbox, lambda path: self._own.resolve(path))
        self._waiting: dict[int, ContextCall[Any]] = {}
        self._calls = 0

    def terminal(
        self, command: str, timeout: float = DEFAULT_TIMEOUT_S, *, session: str | None = None
    ) -> ContextCall[JSONObject]:
        """Run a command: ``{"exit_code", "output", "error"}``; see the ``terminal`` tool.

        Args:
            command: For the sandbox's shell.
            timeout: Seconds, any number; then the exit code is 124.
            session: "agent" = in the agent's own session, with all it defined there.
        """
        return self._call("terminal", lambda: self._terminal(command, timeout, session))

    def read_file(self, path: str) -> ContextCall[JSONObject]:
        """Read a whole text file: ``{"content", "total_lines", "file_size"}``, no line numbers.

        With ``error`` (and an empty ``content``) if it cannot be read or exceeds 8 MiB.
        Undecodable bytes become U+FFFD; for exact bytes use :meth:`download_file`.
        """
        return self._call("read_file", lambda: self._read_file(path))

    def write_file(self, path: str, content: str | bytes) -> ContextCall[JSONObject]:
        """Write a file exactly as given: ``{"bytes_written"}``, with ``error`` if it failed."""
        return self._call("write_file", lambda: self._write_file(path, content))

    def search(self, query: str, path: str = ".") -> ContextCall[JSONObject]:
        """Search file contents; the result of the ``search_files`` tool."""
        arguments = {"pattern": query, "path": path}
        return self._call("search", lambda: self._tool("search", "search_files", arguments))

    def upload_file(self, local_path: str | Path, remote_path: str) -> ContextCall[JSONObject]:
        """Copy a host file into the sandbox: ``{"exit_code": 0, "output": ""}``.

        Raises:
            RewardError: There is no such host file.
        """
        return self._call(
            "upload_file", lambda: self._transfers.upload_file(Path(local_path), remote_path)
        )

    def upload_dir(self, local_dir: str | Path, remote_dir: str) -> ContextCall[list[JSONObject]]:
        """Copy the contents of a host directory: one ``upload_file`` result per file.

        Raises:
            RewardError: There is no such host directory.
        """
        return self._call(
            "upload_dir", lambda: self._transfers.upload_dir(Path(local_dir), remote_dir)
        )

    def download_file(self, remote_path: str, local_path: str | Path) -> ContextCall[JSONObject]:
        """Copy a file to the host: ``{"success": True, "bytes"}``, or False with ``error``.

        The sandbox is hostile: see :meth:`hermes_rl.sandbox.Sandbox.download`.
        """
        return self._call(
            "download_file", lambda: self._transfers.download_file(remote_path, Path(local_path))
        )

    def download_dir(self, remote_dir: str, local_dir: str | Path) -> ContextCall[list[JSONObject]]:
        """Copy a directory's contents to the host: ``{"success", "path", "bytes"}`` per file."""
        return self._call(
            "download_dir", lambda: self._transfers.download_dir(remote_dir, Path(local_dir))
        )

    def web_search(self, query: str) -> ContextCall[JSONObject]:
        """Search the web.

        Raises:
            MissingExtra: The rollout's tools do not include it.
        """
        return self._call("web_search", lambda: self._extra("web_search", {"query": query}))

    def web_extract(self, urls: Sequence[str]) -> ContextCall[JSONObject]:
        """Extract the text of web pages.

        Raises:
            MissingExtra: The rollout's tools do not include it.
        """
        return self._call("web_extract", lambda: self._extra("web_extract", {"urls": list(urls)}))

    def browser_navigate(self, url: str) -> ContextCall[JSONObject]:
        """Open a page in the rollout's browser.

        Raises:
            MissingExtra: The rollout's tools do not include it.
        """
        return self._call("browser_navigate", lambda: self._extra("browser_navigate", {"url": url}))

    def browser_snapshot(self) -> ContextCall[JSONObject]:
        """Return what the rollout's browser shows.

        Raises:
            MissingExtra: The rollout's tools do not include it.
        """
        return self._call("browser_snapshot", lambda: self._extra("browser_snapshot", {}))

    def call_tool(self, name: str, arguments: JSONObject) -> ContextCall[str]:
        """Call any tool by name; returns its raw result, usually JSON text."""
        return self._call("call_tool", lambda: self._raw(name, arguments))

    def cleanup(self) -> ContextCall[None]:
        """End what reward code started in the background. The sandbox is the rollout's to close."""
        return self._call("cleanup", lambda: self._own.aclose())

    def spare_sandbox(self) -> AbstractAsyncContextManager[Sandbox]:
        """Open another sandbox like this one when it was made; leaving removes it.

        ::

            async with ctx.spare_sandbox() as spare:
                ...

        Raises:
            Unsupported: This context cannot open one.
        """
        if self._open_spare is None:
            raise Unsupported("This context opens no sandboxes.", capability="spare_sandbox")
        return self._open_spare()

    def pending(self) -> list[str]:
        """Say which calls were made but never awaited, each with its file and line."""
        return [call.problem for call in self._waiting.values()]

    def _call(self, name: str, run: Callable[[], Awaitable[T]]) -> ContextCall[T]:
        frame = sys._getframe(2)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        call = ContextCall(f"ctx.{name}(...)", where, run, self._forget)
        self._waiting[id(call)] = call
        return call

    def _forget(self, call: ContextCall[Any]) -> None:
        self._waiting.pop(id(call), None)

    @property
    def _own(self) -> ToolDispatcher:
        return self._dispatcher(REWARD_SESSION)

    def _dispatcher(self, session: str) -> ToolDispatcher:
        """Return the dispatcher of a session; made at first use, when the agent has ended."""
        if session not in self._dispatchers:
            self._dispatchers[session] = (
                self.tools.fork(session=session)
                if isinstance(self.tools, ToolDispatcher)
                else ToolDispatcher(self.sandbox, list(NATIVE_TOOLS), session=session)
            )
        return self._dispatchers[session]

    async def _terminal(self, command: str, timeout_s: float, session: str | None) -> JSONObject:
        if session not in (None, REWARD_SESSION, AGENT_SESSION):
            raise RewardError(f"session must be 'agent' or left out, not {session!r}.")
        dispatcher = self._dispatcher(session or REWARD_SESSION)
        return await dispatcher.run_command(command, timeout_s=timeout_s)

    async def _read_file(self, path: str) -> JSONObject:
        try:
            full = await self._own.resolve(path)
            data = await self.sandbox.read(full, max_bytes=MAX_READ_BYTES)
        except FileError as error:
            return {"content": "", "total_lines": 0, "file_size": 0, "error": str(error)}
        lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        text = data.decode("utf-8", "replace")
        return {"content": text, "total_lines": lines, "file_size": len(data)}

    async def _write_file(self, path: str, content: str | bytes) -> JSONObject:
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        try:
            await self.sandbox.write(await self._own.resolve(path), data)
        except FileError as error:
            return {"bytes_written": 0, "error": str(error)}
        return {"bytes_written": len(data)}

    async def _extra(self, name: str, arguments: JSONObject) -> JSONObject:
        if not self._has(name):
            raise MissingExtra.of(f"ctx.{name}", "hermes")
        return await self._tool(name, name, arguments)

    def _has(self, name: str) -> bool:
        offered = [schema["function"]["name"] for schema in self.tools.schemas]
        return name in self._own.names or name in offered

    async def _tool(self, method: str, name: str, arguments: JSONObject) -> JSONObject:
        text = await self._raw(name, arguments)
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            return {"error": text}
        return value if isinstance(value, dict) else {"output": value}

    async def _raw(self, name: str, arguments: JSONObject) -> str:
        self._calls += 1
        target: Dispatcher = self._own if name in self._own.names else self.tools
        result = await target.call(name, encode_json(arguments), f"reward-{self._calls}")
        return result.content if isinstance(result.content, str) else encode_json(result.content)
