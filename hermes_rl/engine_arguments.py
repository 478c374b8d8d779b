"""What an engine is made from, checked before anything is opened: mistakes of its callers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hermes_rl.config import AgentFields, ServerConfig
from hermes_rl.errors import ConfigError
from hermes_rl.model.protocol import ChatModel
from hermes_rl.rollout_site import PerTaskModel
from hermes_rl.sandbox import Backend

__all__ = ["check_arguments", "check_event_loop"]

_MODEL_MEMBERS = ("name", "context_tokens", "session")
_BACKEND_MEMBERS = ("name", "create", "__aenter__", "__aexit__")


def check_arguments(
    config: AgentFields,
    servers: Sequence[ServerConfig] | None,
    model: ChatModel | PerTaskModel | None,
    backend: Backend | None,
) -> None:
    """Check what an engine was given; callers without a type checker give anything.

    Raises:
        ConfigError: Something is of the wrong kind, or there is not one of servers and model.
    """
    if not isinstance(config, AgentFields):
        raise ConfigError(f"The engine's config must be an EnvConfig, not {_kind(config)}.")
    if (model is None) == (not servers):
        raise ConfigError("Give the engine either servers or a model.")
    if isinstance(servers, ServerConfig) or not all(
        isinstance(server, ServerConfig) for server in servers or ()
    ):
        raise ConfigError(
            "The engine's servers must be a list of ServerConfig: [ServerConfig(...)]."
        )
    if model is not None and not (_has(model, _MODEL_MEMBERS) or _has(model, ("for_task",))):
        raise ConfigError(
            f"The engine's model must be a hermes_rl.model.ChatModel, not {_kind(model)}: an "
            "object with name, context_tokens and session(...). One with chat_completion(**kwargs) "
            "is made one by hermes_rl.model.adapter.ChatCompletionModel(it); a served model is "
            "given as servers."
        )
    if backend is not None and not _has(backend, _BACKEND_MEMBERS):
        raise ConfigError(
            f"The engine's backend must be a hermes_rl.sandbox.Backend, not {_kind(backend)}. A "
            "registered one is named in the configuration: EnvConfig(terminal_backend=...)."
        )


def check_event_loop() -> None:
    """Check that this runs on asyncio.

    Raises:
        ConfigError: It runs on another event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            "The engine runs on asyncio (uvloop too) only. Under trio run it in a thread of its "
            "own: trio.to_thread.run_sync(asyncio.run, main())."
        ) from None


def _has(value: object, members: Sequence[str]) -> bool:
    """Say whether a value, and not its class, has members; proxies that make them up have."""
    return not isinstance(value, type) and all(hasattr(value, name) for name in members)


def _kind(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
