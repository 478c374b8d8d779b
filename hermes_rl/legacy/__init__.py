"""hermes-agent's tools beside the native ones, and the names of the old framework.

An engine runs them in worker processes (:mod:`hermes_rl.legacy.pool`); which of them may be used
is in :mod:`hermes_rl.legacy.safety`. The functions below are for old code that calls tools itself;
they run in threads of this process. Importing this package imports no hermes-agent.
"""

from __future__ import annotations

from hermes_rl.legacy.dispatcher import legacy_dispatcher
from hermes_rl.legacy.functions import (
    cleanup_all_environments,
    get_tool_definitions,
    handle_function_call,
    resize_tool_pool,
)
from hermes_rl.legacy.functions import tool_executor as _tool_executor
from hermes_rl.legacy.patches import apply_patches

__all__ = [
    "_tool_executor",
    "apply_patches",
    "cleanup_all_environments",
    "get_tool_definitions",
    "handle_function_call",
    "legacy_dispatcher",
    "resize_tool_pool",
]
