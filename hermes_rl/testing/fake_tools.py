"""A dispatcher whose tools are plain functions, for tests above the tools."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import anyio
import orjson

from hermes_rl.types import JSONObject, ToolResult

__all__ = ["FakeCall", "FakeTool", "FakeTools"]

FakeTool = Callable[[JSONObject], str | ToolResult | Awaitable[str | ToolResult]]
"""Takes the decoded arguments; may be async; may raise what a real tool may raise."""


@dataclass(slots=True, frozen=True)
class FakeCall:
    """One call as it arrived."""

    name: str
    arguments: str
    call_id: str


class FakeTools:
    """A :class:`~hermes_rl.tools.protocol.Dispatcher` over functions.

    Args:
        tools: Function by tool name.
        read_only: Names whose calls may run beside each other.

    Attributes:
        calls: Every call, in order of arrival.
        turns: How often :meth:`begin_turn` ran.
        closed: How often :meth:`aclose` ran.
    """

    def __init__(
        self, tools: Mapping[str, FakeTool], *, read_only: Collection[str] = frozenset()
    ) -> None:
        self._tools = dict(tools)
        self._read_only = frozenset(read_only)
        self.calls: list[FakeCall] = []
        self.turns = 0
        self.closed = 0

    @property
    def names(self) -> frozenset[str]:
        """Names of all tools."""
        return frozenset(self._tools)

    @property
    def schemas(self) -> Sequence[JSONObject]:
        """A schema without parameters per tool."""
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": f"The fake tool {name}.",
                    "parameters": {"type": "object", "properties": {}},
                },
            }
            for name in self._tools
        ]

    def is_read_only(self, name: str) -> bool:
        """Say what the constructor was told."""
        return name in self._read_only

    def begin_turn(self) -> None:
        """Count the turn."""
        self.turns += 1

    async def call(self, name: str, arguments: str, call_id: str) -> ToolResult:
        """Decode the arguments and call the function; malformed ones are an error result."""
        await anyio.lowlevel.checkpoint()
        self.calls.append(FakeCall(name, arguments, call_id))
        try:
            decoded = orjson.loads(arguments)
        except orjson.JSONDecodeError as error:
            return ToolResult(
                orjson.dumps({"error": f"Invalid JSON arguments: {error}"}).decode(),
                f"Invalid JSON arguments: {error}",
            )
        answer = self._tools[name](decoded)
        if inspect.isawaitable(answer):
            answer = await answer
        return answer if isinstance(answer, ToolResult) else ToolResult(answer)

    async def aclose(self) -> None:
        """Count the close."""
        self.closed += 1
