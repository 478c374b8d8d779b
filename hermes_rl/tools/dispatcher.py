"""The tools of one rollout behind one door.

Contract of :meth:`ToolDispatcher.call`:

* The model's mistakes (unknown tool, malformed or wrong arguments, missing files) are results
  with ``error`` set and an ``error`` key in their JSON, and never exceptions.
* Failures of the sandbox (:class:`~hermes_rl.errors.SandboxError`, but for ``FileError``) are
  raised. Any other exception of a handler is raised as :class:`~hermes_rl.errors.ToolFault`.
* A call that passes its deadline is cancelled and becomes an error result. ``terminal`` and
  ``process`` keep their own deadlines; all others have ``ToolSettings.call_timeout_s``.
* A result longer than ``max_result_chars`` is saved as ``/tmp/hermes-results/<n>.txt`` in the
  sandbox and replaced by a ``<persisted-output>`` block with its beginning. So is a result that
  takes the results of one turn (since :meth:`ToolDispatcher.begin_turn`) beyond
  ``max_turn_chars``. ``read_file`` is exempt. The native tools keep below the first limit by
  themselves (but for output that is mostly control characters, which JSON writes longer).
* Background processes that were asked to report (``notify_on_complete``, ``watch_patterns``) are
  looked at after every call; news is added to that call's result: as ``"notifications": [...]``
  in a JSON object, as a last line in other text. Each piece of news is told once. An end that the
  model saw through the ``process`` tool is not told again.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Self

import anyio
import orjson

from hermes_rl.author_code import failure_text
from hermes_rl.errors import FileError, HermesRLError, ToolFault, UnknownName
from hermes_rl.sandbox import Capability, Sandbox
from hermes_rl.tools.arguments import parse_arguments
from hermes_rl.tools.native import NATIVE_TOOLS
from hermes_rl.tools.output import encode_json
from hermes_rl.tools.processes import ProcessTable
from hermes_rl.tools.scope import Shell, ToolScope, ToolSettings
from hermes_rl.tools.terminal import run_foreground
from hermes_rl.tools.tool import Tool, ToolOutcome
from hermes_rl.types import JSONObject, ToolResult

__all__ = ["ToolDispatcher"]

RESULT_DIRECTORY = "/tmp/hermes-results"
PREVIEW_CHARS = 1_500
"""Shown of a result that was saved in the sandbox."""


class ToolDispatcher:
    """Runs tool calls on one sandbox. Implements :class:`hermes_rl.tools.protocol.Dispatcher`.

    Args:
        sandbox: The rollout's sandbox; never closed here.
        tools: Names to offer, in the order of the schemas; see
            :func:`hermes_rl.tools.toolsets.resolve_toolsets`.
        settings: Limits.
        extra_tools: Tools beyond the native ones; one of the same name replaces a native tool.
        session: Shell session of the commands.
        start_cwd: Directory that session starts in; None = the sandbox's.
        on_close: Frees what ``extra_tools`` hold; part of :meth:`aclose`, but not of a fork's.

    Raises:
        UnknownName: A name is neither native nor among ``extra_tools``.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        tools: Sequence[str],
        *,
        settings: ToolSettings | None = None,
        extra_tools: Iterable[Tool] = (),
        session: str = "agent",
        start_cwd: str | None = None,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        settings = settings or ToolSettings()
        shell = Shell(sandbox, session, user=settings.user, start_cwd=start_cwd)
        self._known = {**NATIVE_TOOLS, **{tool.name: tool for tool in extra_tools}}
        self._tools = {name: self._find(name) for name in tools}
        self._owner: str | None = None
        self._on_close = on_close
        self._turn_chars: int | None = None
        self._saved = itertools.count(1)
        self._scope = ToolScope(
            sandbox=sandbox,
            shell=shell,
            processes=ProcessTable(sandbox, limit=settings.max_processes),
            settings=settings,
            guard_host=Capability.ISOLATION not in sandbox.capabilities,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools offered, in order."""
        return tuple(self._tools)

    @property
    def schemas(self) -> Sequence[JSONObject]:
        """Schemas in OpenAI form, in order."""
        return [tool.schema for tool in self._tools.values()]

    @property
    def cwd(self) -> str | None:
        """Working directory of the session after its last command, None if unknown."""
        return self._scope.shell.cwd

    def is_read_only(self, name: str) -> bool:
        """Say whether calls of this tool may run beside each other."""
        return name in self._tools and self._tools[name].read_only

    def begin_turn(self) -> None:
        """Start the per-turn size budget anew. Without any call of this there is no such budget."""
        self._turn_chars = 0

    async def call(self, name: str, arguments: str, call_id: str) -> ToolResult:
        """Parse, coerce and run one call; see the module's docstring.

        Cancelling kills what the call runs in the sandbox.

        Raises:
            SandboxError: The sandbox failed (not the command in it).
            ToolFault: The tool itself broke.
        """
        tool = self._tools.get(name)
        if tool is None:
            return await self._finish(_failure(self._unknown(name)))
        parsed = parse_arguments(arguments, tool.parameters, aliases=tool.aliases)
        if parsed.error is not None:
            return await self._finish(_failure(f"{name}: {parsed.error}"))
        outcome = await self._run(tool, parsed.values, call_id)
        return await self._finish(outcome, spills=tool.spills)

    async def aclose(self) -> None:
        """Kill background processes and free what tools hold. Idempotent, shielded, <= 5 s.

        Call it after the reward: servers that the agent started end here.
        """
        async with anyio.create_task_group() as group:
            group.start_soon(self._scope.processes.aclose, self._owner)
            if self._on_close is not None:
                with anyio.CancelScope(shield=True):
                    await self._on_close()

    def fork(self, *, session: str) -> Self:
        """Return a dispatcher for reward code: all tools, the same processes, its own session.

        The session starts with the sandbox's original environment and user, in this one's
        directory. ``session`` equal to this one's shares its state. The fork's ``aclose`` ends
        only what the fork started.
        """
        scope = self._scope
        other = type(self)(
            scope.sandbox, list(self._known), settings=replace(scope.settings, user=None),
            extra_tools=self._known.values(), session=session, start_cwd=self.cwd,
        )  # fmt: skip
        shell = scope.shell if session == scope.shell.session else other._scope.shell
        other._scope = replace(scope, shell=shell, guard_host=False)
        other._owner = session if shell is not scope.shell else ""
        return other

    async def run_command(self, command: str, *, timeout_s: float) -> JSONObject:
        """Run a command in the session as ``terminal`` does, with any deadline."""
        return await run_foreground(self._scope, command, timeout_s=timeout_s)

    async def resolve(self, path: str) -> str:
        """Return ``path`` absolute, as seen from the session's directory; ``~`` is expanded."""
        return await self._scope.shell.resolve(path)

    def _find(self, name: str) -> Tool:
        if name not in self._known:
            raise UnknownName.of("tool", name, self._known)
        return self._known[name]

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._tools, n=2)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        return f"Unknown tool {name!r}.{hint} Available tools: {', '.join(self._tools) or 'none'}."

    async def _run(self, tool: Tool, arguments: JSONObject, call_id: str) -> ToolOutcome:
        limit_s = tool.deadline_s
        if limit_s is None:
            limit_s = self._scope.settings.call_timeout_s
        scope = replace(self._scope, call_id=call_id)
        try:
            with anyio.move_on_after(limit_s):
                return await tool.handler(scope, arguments)
        except FileError as error:
            return _failure(str(error))
        except HermesRLError:
            raise
        except (Exception, SystemExit) as error:  # tools and backends of others raise anything
            raise ToolFault(
                f"Tool {tool.name!r} broke: {failure_text(error)}. This is a bug of the tool or "
                "of the backend, not of the model; the rollout is errored."
            ) from error
        return _failure(f"{tool.name} did not finish within {limit_s:g} s and was cancelled.")

    async def _finish(self, outcome: ToolOutcome, *, spills: bool = True) -> ToolResult:
        """Attach notices, serialise, and keep within the size budget."""
        notices = self._scope.processes.notices()
        error = None
        if isinstance(outcome, ToolResult):
            content, error = outcome.content, outcome.error
        elif isinstance(outcome, str):
            content = outcome
        else:
            if notices:
                outcome, notices = {**outcome, "notifications": notices}, []
            reason = outcome.get("error")
            content, error = encode_json(outcome), str(reason) if reason else None
        if isinstance(content, list):
            extra = [{"type": "text", "text": _notice_line(notices)}] if notices else []
            return ToolResult([*content, *extra], error)
        text = _with_notices(content, notices)
        return ToolResult(await self._within_budget(text, spills=spills), error)

    async def _within_budget(self, text: str, *, spills: bool) -> str:
        settings = self._scope.settings
        room = settings.max_result_chars
        if self._turn_chars is not None:
            room = min(room, settings.max_turn_chars - self._turn_chars)
        if spills and len(text) > max(room, 2 * PREVIEW_CHARS):
            text = await self._saved_elsewhere(text)
        if self._turn_chars is not None:
            self._turn_chars += len(text)
        return text

    async def _saved_elsewhere(self, text: str) -> str:
        path = f"{RESULT_DIRECTORY}/{next(self._saved)}.txt"
        try:
            await self._scope.write(path, text.encode("utf-8", "replace"))
            where = f"Full output saved to: {path}\nRead it in parts with read_file or terminal."
        except FileError as error:
            where = f"It could not be saved ({error}); ask for less at once."
        return (
            "<persisted-output>\n"
            f"This tool result was too large ({len(text):,} characters, "
            f"{len(text.encode('utf-8', 'replace')) / 1024:.1f} KB).\n{where}\n\n"
            f"Preview (first {PREVIEW_CHARS:,} chars):\n{text[:PREVIEW_CHARS]}\n"
            "</persisted-output>"
        )


def _failure(error: str) -> JSONObject:
    return {"error": error}


def _notice_line(notices: Sequence[JSONObject]) -> str:
    return f"[Notifications: {encode_json(notices)}]"


def _with_notices(text: str, notices: Sequence[JSONObject]) -> str:
    if not notices:
        return text
    if text.lstrip().startswith("{"):
        try:
            return encode_json({**orjson.loads(text), "notifications": notices})
        except orjson.JSONDecodeError:
            pass  # Text that only looks like an object.
    return f"{text}\n\n{_notice_line(notices)}"
