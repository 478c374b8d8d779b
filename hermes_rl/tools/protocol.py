"""The seam between the agent loop and its tools."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hermes_rl.types import JSONObject, ToolResult

__all__ = ["Dispatcher"]


class Dispatcher(Protocol):
    """The tools of one rollout."""

    @property
    def schemas(self) -> Sequence[JSONObject]:
        """Schemas in OpenAI form (``{"type": "function", "function": {...}}``)."""
        ...

    def is_read_only(self, name: str) -> bool:
        """Say whether calls of this tool may run beside each other."""
        ...

    def begin_turn(self) -> None:
        """Say that the calls of another assistant message follow (sizes are capped per turn)."""
        ...

    async def call(self, name: str, arguments: str, call_id: str) -> ToolResult:
        """Parse, coerce and run one call. The model's mistakes are results, never exceptions.

        Raises:
            SandboxError: The sandbox or backend failed (not the command in it).
        """
        ...

    async def aclose(self) -> None:
        """Free what the tools hold (background process handles), not the sandbox. Idempotent."""
        ...
