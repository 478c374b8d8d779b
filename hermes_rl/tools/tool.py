"""What a tool is: a name, a schema and an async handler.

A third party adds a tool by handing a :class:`Tool` to :class:`~hermes_rl.tools.ToolDispatcher`::

    async def shout(scope, arguments):
        return {"text": arguments["text"].upper()}

    SHOUT = Tool(
        name="shout",
        description="Return the text in capitals.",
        parameters={
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
        },
        handler=shout,
        read_only=True,
    )
    ToolDispatcher(sandbox, ["terminal", "shout"], extra_tools=[SHOUT])

The handler gets arguments that were parsed, coerced and checked against ``parameters``. It
reports the model's mistakes as ``{"error": "..."}``; an exception other than
:class:`~hermes_rl.errors.HermesRLError` is a fault of the tool and ends the rollout.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from hermes_rl.tools.scope import ToolScope
from hermes_rl.types import JSONObject, ToolResult

__all__ = ["Tool", "ToolHandler", "ToolOutcome"]

ToolOutcome = JSONObject | str | ToolResult
"""A JSON object (a truthy ``error`` key marks a failure), text, or a finished result."""
ToolHandler = Callable[[ToolScope, JSONObject], Awaitable[ToolOutcome]]


@dataclass(slots=True, frozen=True, kw_only=True)
class Tool:
    """One tool.

    Attributes:
        name: What the model calls it.
        description: What the model is told about it.
        parameters: JSON schema of the arguments (``type: object``).
        handler: Runs one call.
        read_only: Calls may run beside other read-only calls of the same message.
        deadline_s: Of one call; None = ``ToolSettings.call_timeout_s``, ``math.inf`` = the
            handler keeps its own.
        spills: A result that is too long is saved in the sandbox and shown in part.
        aliases: By parameter: other spellings of its values that are understood.
    """

    name: str
    description: str
    parameters: JSONObject
    handler: ToolHandler
    read_only: bool = False
    deadline_s: float | None = None
    spills: bool = True
    aliases: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def schema(self) -> JSONObject:
        """The tool in OpenAI form."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}
