"""The functions of the old framework, in threads of this process.

They are for old code that calls hermes-agent's tools itself. hermes-agent must be installed for
this interpreter. Rollouts of an engine do not come through here; see :mod:`hermes_rl.legacy.pool`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import Sequence
from typing import Any

from hermes_rl.legacy.catalog import NOTHING, Catalog, read_answer, survey_questions
from hermes_rl.legacy.in_process import load, loaded
from hermes_rl.legacy.in_worker.hermes import Hermes
from hermes_rl.legacy.in_worker.threads import BoundedThreads
from hermes_rl.legacy.in_worker.worker import survey
from hermes_rl.legacy.safety import FILE_ARGUMENTS, argument_problem, is_web_address, refusal
from hermes_rl.legacy.settings import is_installed_here
from hermes_rl.tools.native import NATIVE_TOOLS
from hermes_rl.tools.output import encode_json
from hermes_rl.tools.toolsets import resolve_toolsets
from hermes_rl.types import JSONObject

__all__ = [
    "call_problem",
    "cleanup_all_environments",
    "get_tool_definitions",
    "handle_function_call",
    "hermes_here",
    "in_event_loop",
    "resize_tool_pool",
    "tool_executor",
]

DEFAULT_THREADS = 128

_log = logging.getLogger(__name__)

tool_executor = BoundedThreads(DEFAULT_THREADS, "hermes-tool")
"""For blocking calls of old code: ``loop.run_in_executor(_tool_executor, ...)``. Its threads copy
the caller's context variables, start when they are needed, and never keep the process alive."""


def resize_tool_pool(max_workers: int) -> None:
    """Change how many threads ``_tool_executor`` may have; running calls are not disturbed."""
    tool_executor.resize(max_workers)


def hermes_here() -> Hermes:
    """Return hermes-agent in this process; imports it the first time, which blocks for seconds.

    The config.yaml and the skills of the directory HERMES_HOME, where that is set, are used.

    Raises:
        MissingExtra: It is not installed.
    """
    return loaded() or load(os.environ.get("HERMES_HOME") or None)


def call_problem(tool: str, arguments: JSONObject) -> str | None:
    """Say why a call without a sandbox is refused; None if it is not."""
    problem = refusal(tool) or argument_problem(tool, arguments)
    named = arguments.get(FILE_ARGUMENTS.get(tool, ""))
    if problem or not named or is_web_address(named) or str(named).startswith("data:"):
        return problem
    return f"{tool}: {named!r} would be a file of the host; give an address or a data: URL."


def handle_function_call(
    function_name: str,
    function_args: JSONObject,
    task_id: str | None = None,
    tool_call_id: str | None = None,
    session_id: str | None = None,
    turn_id: str | None = None,
    api_request_id: str | None = None,
    user_task: str | None = None,
    **options: Any,
) -> str | JSONObject:
    """Run one call of a hermes-agent tool and return its result: text, or a multimodal object.

    Blocks. Inside a running event loop the call runs in ``_tool_executor`` while the loop waits;
    use ``loop.run_in_executor(_tool_executor, ...)`` there. Failures, refusals too, are JSON text
    with ``error``.

    Raises:
        MissingExtra: hermes-agent is not installed for this interpreter.
    """
    problem = call_problem(function_name, function_args)
    if problem is not None:
        return encode_json({"error": problem})
    hermes = hermes_here()
    options |= {"tool_call_id": tool_call_id, "session_id": session_id, "user_task": user_task}
    options |= {"turn_id": turn_id, "api_request_id": api_request_id}

    def call() -> str | JSONObject:
        try:
            result: str | JSONObject = hermes.raw_call(
                function_name, copy.deepcopy(function_args), task_id, **options
            )
        except (Exception, SystemExit) as error:
            message = f"Tool execution failed: {type(error).__name__}: {error}"
            return encode_json({"error": message})
        return result

    if not in_event_loop():
        return call()
    _log.debug("handle_function_call(%r) blocks the event loop", function_name)
    return tool_executor.submit(call).result()


def get_tool_definitions(
    enabled_toolsets: Sequence[str] | None = None,
    disabled_toolsets: Sequence[str] | None = None,
    quiet_mode: bool = True,
) -> list[JSONObject]:
    """Return the schemas of the tools of toolsets, native ones and hermes-agent's, by name.

    Blocks where hermes-agent is to be imported. Nothing is printed, whatever ``quiet_mode`` says.

    Raises:
        UnknownName: A name is no toolset.
        ConfigError: A toolset is named but not available.
    """
    catalog = _catalog_here()
    names = resolve_toolsets(enabled_toolsets, disabled_toolsets, catalog.availability)
    return [
        NATIVE_TOOLS[name].schema if name in NATIVE_TOOLS else catalog.schemas[name]
        for name in names
    ]


def _catalog_here() -> Catalog:
    if not is_installed_here():
        return NOTHING
    questions = survey_questions()
    return read_answer(survey(hermes_here(), questions["known"], questions["wanted"]))


def cleanup_all_environments() -> None:
    """Free the environments and browsers that hermes-agent's tools hold in this process."""
    hermes = loaded()
    if hermes is not None:
        hermes.end_all()


def in_event_loop() -> bool:
    """Say whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
