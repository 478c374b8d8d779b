"""The ``process`` tool: look after background processes of this rollout.

Every process that ``terminal(background=true)`` starts has an open standard input, so ``write``
(as is), ``submit`` (with a line end) and ``close`` (end of file) work for all of them.
Output is the last 200,000 bytes; what was dropped before is counted in ``dropped_bytes``.
"""

from __future__ import annotations

import math
import time

import anyio

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import ExecResult
from hermes_rl.tools.output import clean_text, cut_middle
from hermes_rl.tools.processes import BackgroundProcess
from hermes_rl.tools.scope import ToolScope
from hermes_rl.tools.tool import Tool
from hermes_rl.types import JSONObject

__all__ = ["PROCESS"]

LIST_PREVIEW_CHARS = 200
POLL_PREVIEW_CHARS = 1_000
WAIT_OUTPUT_CHARS = 2_000
DEFAULT_LOG_LINES = 200
KILL_GRACE_S = 1.0
"""Between SIGTERM and SIGKILL of ``kill``."""
WRITE_TIMEOUT_S = 10.0
"""A process that reads nothing for so long is reported, not waited for."""

_ACTIONS = ["list", "poll", "log", "wait", "kill", "write", "submit", "close"]
_DESCRIPTION = """\
Look after processes started with terminal(background=true).

list: all of them. poll: state and latest output of one. log: its output by lines. wait: until it \
ends or the timeout passes. kill: end it and its children. write: send data to its standard input \
as is; submit: the same with Enter; close: end its input."""

_PARAMETERS: JSONObject = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": _ACTIONS, "description": "What to do."},
        "session_id": {
            "type": "string",
            "description": "Which process, as returned by terminal; for all actions but list.",
        },
        "data": {"type": "string", "description": "Text for write and submit."},
        "timeout": {
            "type": "integer",
            "minimum": 1,
            "description": "For wait: seconds to wait at most.",
        },
        "offset": {
            "type": "integer",
            "description": "For log: first line to show, from 0; left out or 0 = the last lines.",
        },
        "limit": {
            "type": "integer",
            "minimum": 1,
            "description": "For log: how many lines to show.",
        },
    },
    "required": ["action"],
}


async def run_process(scope: ToolScope, arguments: JSONObject) -> JSONObject:
    """Run one ``process`` call."""
    action: str = arguments["action"]
    if action == "list":
        return {"processes": [_listed(scope, process) for process in scope.processes]}
    session_id = arguments.get("session_id")
    if not session_id:
        return {"error": f"session_id is required for {action}"}
    process = scope.processes.get(session_id)
    if process is None:
        known = ", ".join(each.session_id for each in scope.processes) or "none"
        error = f"No process with ID {session_id}. Known: {known}."
        return {"status": "not_found", "error": error}
    if action == "poll":
        return _polled(scope, process)
    if action == "log":
        return _log(scope, process, arguments.get("offset") or 0, arguments.get("limit"))
    if action == "wait":
        return await _wait(scope, process, arguments.get("timeout"))
    if action == "kill":
        return await _kill(process)
    return await _feed(process, action, arguments.get("data"))


def _state(process: BackgroundProcess) -> JSONObject:
    """Return what is known of the end of a process; nothing while it runs."""
    result = process.process.result
    if result is None:
        return {}
    source = "process.kill" if process.killed else None
    reason = "killed" if process.killed else "exited"
    return {
        "exit_code": result.exit_code,
        "completion_reason": reason,
        "termination_source": source or _signal_name(result),
    }


def _signal_name(result: ExecResult) -> str | None:
    return None if result.signal is None else f"signal {result.signal}"


def _status(process: BackgroundProcess) -> str:
    return "running" if process.exit_code is None else "exited"


def _common(scope: ToolScope, process: BackgroundProcess) -> JSONObject:
    return {
        "session_id": process.session_id,
        "command": process.command[:200],
        "status": _status(process),
        "pid": process.process.pid,
        "uptime_seconds": int(_ended_or_now(scope, process) - process.started_at_s),
    }


def _ended_or_now(scope: ToolScope, process: BackgroundProcess) -> float:
    result = process.process.result
    return scope.processes.clock() if result is None else process.started_at_s + result.duration_s


def _listed(scope: ToolScope, process: BackgroundProcess) -> JSONObject:
    started_at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(process.started_at_s))
    listed = {
        **_common(scope, process),
        "cwd": process.cwd,
        "started_at": started_at,
        "output_preview": process.output(LIST_PREVIEW_CHARS),
    }
    if process.watch_patterns:
        listed["watch_patterns"] = list(process.watch_patterns)
    if process.notify_on_complete:
        listed["notify_on_complete"] = True
    if process.exit_code is not None:
        listed["exit_code"] = process.exit_code
    return listed


def _polled(scope: ToolScope, process: BackgroundProcess) -> JSONObject:
    process.mark_told()
    preview = process.output(POLL_PREVIEW_CHARS)
    return {**_common(scope, process), "output_preview": preview, **_state(process)}


def _log(
    scope: ToolScope, process: BackgroundProcess, offset: int, limit: int | None
) -> JSONObject:
    process.mark_told()
    data = process.process.tail
    lines = clean_text(data.decode("utf-8", "replace")).splitlines()
    count = max(1, limit or DEFAULT_LOG_LINES)
    shown = lines[offset : offset + count] if offset > 0 else lines[-count:]
    outcome: JSONObject = {
        "session_id": process.session_id,
        "command": process.command[:200],
        "status": _status(process),
        "output": cut_middle("\n".join(shown), scope.settings.max_output_chars),
        "total_lines": len(lines),
        "showing": f"{len(shown)} lines",
    }
    dropped = process.process.total_bytes - len(data)
    if dropped > 0:
        outcome["dropped_bytes"] = dropped
        outcome["note"] = f"The first {dropped:,} bytes are no longer kept; lines count from there."
    return outcome


async def _wait(scope: ToolScope, process: BackgroundProcess, timeout_s: int | None) -> JSONObject:
    longest_s = scope.settings.command_timeout_s
    seconds = min(timeout_s, longest_s) if timeout_s and timeout_s > 0 else longest_s
    note = ""
    if timeout_s and timeout_s > longest_s:
        note = f"A wait may take {longest_s:g}s at most; {timeout_s}s was shortened to that"
    with anyio.move_on_after(seconds):
        await process.process.wait()
    if process.exit_code is None:
        still = f"Waited {seconds:g}s, process still running"
        outcome = {
            "status": "timeout",
            "command": process.command[:200],
            "output": process.output(POLL_PREVIEW_CHARS),
            "timeout_note": f"{note}. {still}" if note else still,
        }
        return outcome
    process.mark_told()
    outcome = {
        "status": "exited",
        "command": process.command[:200],
        **_state(process),
        "output": process.output(WAIT_OUTPUT_CHARS),
    }
    return {**outcome, "timeout_note": note} if note else outcome


async def _kill(process: BackgroundProcess) -> JSONObject:
    already = process.exit_code is not None
    if not already:
        process.killed = True
        await process.process.kill(grace_s=KILL_GRACE_S)
        await process.process.kill()  # Children that outlived the command's own end.
    process.mark_told()
    return {
        "status": "already_exited" if already else "killed",
        "session_id": process.session_id,
        **_state(process),
        "output": process.output(WAIT_OUTPUT_CHARS),
    }


async def _feed(process: BackgroundProcess, action: str, data: str | None) -> JSONObject:
    if process.exit_code is not None:
        return {"status": "already_exited", "error": "Process has already finished"}
    if action == "close":
        await process.process.write_eof()
        return {"status": "ok", "message": "EOF sent"}
    if data is None:
        return {"error": f"data is required for {action}"}
    payload = (data + "\n" if action == "submit" else data).encode("utf-8", "replace")
    try:
        with anyio.move_on_after(WRITE_TIMEOUT_S) as deadline:
            await process.process.write(payload)
    except SandboxError as error:
        if type(error) is not SandboxError:
            raise  # The sandbox is gone or its channel lost: no fault of the process.
        return {"status": "error", "error": "The process has closed its input."}
    if deadline.cancelled_caught:
        waited = f"The process has read nothing for {WRITE_TIMEOUT_S:g}s; part of it may be sent."
        return {"status": "error", "error": waited}
    return {"status": "ok", "bytes_written": len(payload)}


PROCESS = Tool(
    name="process",
    description=_DESCRIPTION,
    parameters=_PARAMETERS,
    handler=run_process,
    deadline_s=math.inf,
)
