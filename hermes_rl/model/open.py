"""Opens the models of a run: from server configurations to one chat model.

Each ``server_type`` has a constructor, imported when it is first needed: an async context manager
``open_x(config, *, parser, limiter, reasoning_in_history)`` that yields a
:class:`~hermes_rl.model.ChatModel`.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Protocol, cast

import anyio
import anyio.to_thread

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.pool import ModelPool
from hermes_rl.model.protocol import ChatModel
from hermes_rl.model.scripted import nop_model
from hermes_rl.model.wire import ReasoningInHistory
from hermes_rl.types import ToolCallParser

__all__ = ["Opener", "open_model"]

_log = logging.getLogger(__name__)

_OPENERS = {
    "openai": "hermes_rl.model.openai:open_openai",
    "vllm": "hermes_rl.model.vllm:open_vllm",
    "sglang": "hermes_rl.model.sglang:open_sglang",
    "llamacpp": "hermes_rl.model.llamacpp:open_llamacpp",
    "local": "hermes_rl.model.local:open_local",
    "oracle": "hermes_rl.model.oracle:open_oracle",
    "nop": "hermes_rl.model.open:open_nop",
}
_NO_EFFECT = (
    "health_check",
    "n_kwarg_is_ignored",
    "num_requests_for_eval",
    "rolling_buffer_length",
)
"""Fields of Atropos' configuration that are accepted and do nothing here."""


class Opener(Protocol):
    """Constructor of one server type."""

    def __call__(
        self,
        config: ServerConfig,
        *,
        parser: ToolCallParser | None,
        limiter: AdaptiveLimiter,
        reasoning_in_history: ReasoningInHistory,
    ) -> AbstractAsyncContextManager[ChatModel]:
        """Open one server.

        Args:
            config: The server.
            parser: Set explicitly by the user; None = the type's own rule.
            limiter: Of this endpoint.
            reasoning_in_history: Whether past reasoning is shown to the model.
        """
        ...


@asynccontextmanager
async def open_model(
    servers: Sequence[ServerConfig],
    *,
    max_calls: int = 256,
    tool_call_parser: ToolCallParser | None = None,
    reasoning_in_history: ReasoningInHistory = "auto",
) -> AsyncIterator[ChatModel]:
    """Open all servers; with several, a rollout stays with the least loaded one.

    Args:
        servers: At least one. All must serve the same model for scores to mean anything.
        max_calls: Model calls in flight per endpoint; ``num_max_requests_at_once`` may lower it.
        tool_call_parser: As the user set it explicitly. None = ``openai`` reads no calls out of
            text, token-exact clients use their default.
        reasoning_in_history: Whether past reasoning is shown to the model.

    Raises:
        ConfigError: No server, or one that cannot be used as configured.
    """
    if not servers:
        raise ConfigError("No model server is configured: set --openai.server_type or base_url.")
    _say_what_has_no_effect(servers)
    importing = anyio.CapacityLimiter(1)
    async with AsyncExitStack() as stack:
        # In a thread: the first use of a server type imports its client library.
        openers = [
            await anyio.to_thread.run_sync(_opener, config, limiter=importing) for config in servers
        ]
        members = [
            await stack.enter_async_context(
                opener(
                    config,
                    parser=tool_call_parser,
                    limiter=_limiter(config, max_calls),
                    reasoning_in_history=reasoning_in_history,
                )
            )
            for opener, config in zip(openers, servers, strict=True)
        ]
        yield members[0] if len(members) == 1 else ModelPool(members)


@asynccontextmanager
async def open_nop(
    config: ServerConfig,
    *,
    parser: ToolCallParser | None = None,
    limiter: AdaptiveLimiter | None = None,
    reasoning_in_history: ReasoningInHistory = "auto",
) -> AsyncIterator[ChatModel]:
    """Open the model that does nothing; the arguments are those of every opener."""
    yield nop_model()


def _limiter(config: ServerConfig, max_calls: int) -> AdaptiveLimiter:
    name = config.base_url or config.server_type
    return AdaptiveLimiter(min(max_calls, config.num_max_requests_at_once), name=name)


def _opener(config: ServerConfig) -> Opener:
    server_type = config.server_type
    if server_type not in _OPENERS:
        raise ConfigError(
            f"server_type {server_type} cannot be opened from a configuration; "
            "pass such a model to RolloutEngine as an object."
        )
    module_name, _, function = _OPENERS[server_type].partition(":")
    return cast(Opener, getattr(importlib.import_module(module_name), function))


def _say_what_has_no_effect(servers: Sequence[ServerConfig]) -> None:
    """Say once per run which configured fields do nothing."""
    defaults = ServerConfig()
    fields = [
        name
        for name in _NO_EFFECT
        if any(getattr(config, name) != getattr(defaults, name) for config in servers)
    ]
    if fields:
        _log.warning("%s: accepted, but without effect here.", ", ".join(fields))
