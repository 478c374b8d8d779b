"""Tools for an agent loop that was given none: hermes-agent's, in threads of this process."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Sequence

import anyio
import anyio.to_thread
import orjson

from hermes_rl.errors import ConfigError, MissingExtra
from hermes_rl.legacy.functions import call_problem, hermes_here, tool_executor
from hermes_rl.legacy.in_process import ThreadLink
from hermes_rl.legacy.pool import CALL_TIMEOUT_S
from hermes_rl.legacy.safety import READ_ONLY, refusal
from hermes_rl.legacy.settings import is_installed_here
from hermes_rl.tools.arguments import parse_arguments
from hermes_rl.tools.output import encode_json
from hermes_rl.tools.protocol import Dispatcher
from hermes_rl.types import JSONObject, ToolResult

__all__ = ["legacy_dispatcher"]


def legacy_dispatcher(names: Collection[str], task_id: str | None = None) -> Dispatcher:
    """Return a dispatcher over hermes-agent's tools, without a sandbox.

    ``aclose`` frees what its calls left open in hermes-agent (browsers); its threads are those of
    ``_tool_executor``.

    Args:
        names: The tools.
        task_id: By which hermes-agent knows this rollout; None = one of its own. Dispatchers of
            the same id share browsers.

    Raises:
        MissingExtra: hermes-agent is not installed for this interpreter.
        ConfigError: A tool is refused or needs a sandbox.
    """
    if not is_installed_here():
        raise MissingExtra.of("HermesAgentLoop without tools=", "hermes")
    refused = [reason for name in sorted(names) if (reason := refusal(name))]
    if refused:
        raise ConfigError(
            f"{' '.join(refused)} Give the loop tools=ToolDispatcher(sandbox, names), or leave "
            "these tools out."
        )
    return _LegacyDispatcher(names, task_id or f"rollout-{uuid.uuid4().hex}")


class _LegacyDispatcher:
    """See :func:`legacy_dispatcher`. Its methods may be called from one event loop only."""

    def __init__(self, names: Collection[str], task: str) -> None:
        self._names = sorted(names)
        self._task = task
        self._known: dict[str, JSONObject] | None = None
        self._link: ThreadLink | None = None
        self._loading = anyio.Lock()

    @property
    def schemas(self) -> Sequence[JSONObject]:
        """Schemas in OpenAI form. Blocks if hermes-agent is not imported yet."""
        return list(self._definitions().values())

    def _definitions(self) -> dict[str, JSONObject]:
        if self._known is None:
            found = hermes_here().definitions(self._names)
            self._known = {schema["function"]["name"]: schema for schema in found}
        return self._known

    def is_read_only(self, name: str) -> bool:
        """Say whether calls of this tool may run beside each other."""
        return name in READ_ONLY

    def begin_turn(self) -> None:
        """Do nothing: without a sandbox there is no place for what is too long."""

    async def call(self, name: str, arguments: str, call_id: str) -> ToolResult:
        """Run one call; see :class:`hermes_rl.tools.protocol.Dispatcher`."""
        link, known = await self._loaded()
        schema = known.get(name)
        if schema is None:
            return _failure(f"Unknown tool {name!r}. Available tools: {', '.join(known)}.")
        parsed = parse_arguments(arguments, schema["function"]["parameters"])
        problem = parsed.error or call_problem(name, parsed.values)
        if problem is not None:
            return _failure(f"{name}: {problem}")
        request = {"tool": name, "arguments": parsed.values, "task": self._task, "call": call_id}
        outcome = await link.call(request, timeout_s=CALL_TIMEOUT_S)
        if outcome is None:
            return _failure(f"{name} did not finish within {CALL_TIMEOUT_S:g} s.")
        content = orjson.loads(outcome.content) if outcome.is_parts else outcome.content
        return ToolResult(content, outcome.error)

    async def aclose(self) -> None:
        """Free what the calls left open. Idempotent, shielded, bounded."""
        with anyio.CancelScope(shield=True):
            if self._link is not None:
                await self._link.end(self._task)

    async def _loaded(self) -> tuple[ThreadLink, dict[str, JSONObject]]:
        async with self._loading:
            limiter = anyio.CapacityLimiter(1)
            known = await anyio.to_thread.run_sync(self._definitions, limiter=limiter)
            if self._link is None:
                self._link = ThreadLink(hermes_here(), tool_executor)
            return self._link, known


def _failure(error: str) -> ToolResult:
    return ToolResult(encode_json({"error": error}), error)
