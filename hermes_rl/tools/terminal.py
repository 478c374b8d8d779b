"""The ``terminal`` tool: run a command in the rollout's shell session.

Foreground results are ``{"output", "exit_code", "error"}`` and, for exit codes that often mean
something harmless, ``exit_code_meaning``. ``output`` holds standard output and error in the order
written, without terminal codes, stripped, cut to ``max_output_chars``. A command that meets its
deadline has exit code 124 and a note at the end of its output; one that a signal ended has 128
plus the signal's number.

``workdir`` holds for one call. ``background=true`` starts the command from the session's current
environment, directory and functions; ``notify_on_complete`` and ``watch_patterns`` add a
``notifications`` list to the next tool result (see :mod:`hermes_rl.tools.dispatcher`).
"""

from __future__ import annotations

import math

from hermes_rl.errors import FileError
from hermes_rl.sandbox import Capability, ExecResult
from hermes_rl.tools.exit_codes import exit_code_meaning
from hermes_rl.tools.host_guard import guard_command
from hermes_rl.tools.output import MAX_UTF8_BYTES, shown_output
from hermes_rl.tools.processes import BackgroundProcess
from hermes_rl.tools.scope import ToolScope
from hermes_rl.tools.tool import Tool
from hermes_rl.types import JSONObject

__all__ = ["TERMINAL", "run_foreground"]

WORKDIR_EXIT_CODE = 126
"""Exit code of a command whose ``workdir`` cannot be entered: it was never run."""

_DESCRIPTION = """\
Run a shell command in the sandbox. The session is kept between calls: the working directory, \
exported variables, functions and aliases stay as the last command left them.

Give one command or a script; standard output and standard error come back together with the exit \
code. Output beyond 50,000 characters is cut in the middle. There is no standard input and no \
terminal: pass flags that keep programs from asking (-y, --no-pager).

A command that passes its timeout is killed with all its children (exit code 124). Start servers \
and other long work with background=true; the result names a session_id for the process tool. \
To read, write, edit or search files prefer read_file, write_file, patch and search_files."""

_PARAMETERS: JSONObject = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "Command or script for the shell."},
        "background": {
            "type": "boolean",
            "default": False,
            "description": "Start the command and return at once with a session_id.",
        },
        "timeout": {
            "type": "integer",
            "minimum": 1,
            "description": "Seconds until a foreground command is killed, at most 600.",
        },
        "workdir": {
            "type": "string",
            "description": "Directory for this command only; the session stays where it is.",
        },
        "pty": {
            "type": "boolean",
            "default": False,
            "description": "With background=true: run on a pseudo-terminal, for interactive "
            "programs that are then driven with the process tool.",
        },
        "notify_on_complete": {
            "type": "boolean",
            "default": False,
            "description": "With background=true: a later tool result tells when it has ended.",
        },
        "watch_patterns": {
            "type": "array",
            "items": {"type": "string"},
            "description": "With background=true: a later tool result tells when a line of "
            "output contains one of these texts (plain text, not a regular expression).",
        },
    },
    "required": ["command"],
}


async def run_terminal(scope: ToolScope, arguments: JSONObject) -> JSONObject:
    """Run one ``terminal`` call."""
    command: str = arguments["command"]
    if not command.strip():
        return _refused("The command is empty.")
    refusal = await guard_command(command) if scope.guard_host else None
    if refusal:
        return {**_refused(refusal), "status": "blocked"}
    if arguments["background"]:
        return await _start(scope, command, arguments)
    longest_s = scope.settings.max_command_timeout_s
    timeout_s = arguments.get("timeout") or 0
    if timeout_s <= 0:
        timeout_s = scope.settings.command_timeout_s
    elif timeout_s > longest_s:
        return {
            "error": f"A foreground command may take {longest_s:g} s at most, not {timeout_s} s. "
            "Use background=true, with notify_on_complete=true to hear of its end."
        }
    workdir = await _workdir(scope, arguments)
    outcome = await run_foreground(scope, command, timeout_s=timeout_s, workdir=workdir)
    if arguments["pty"]:
        outcome["pty_note"] = "pty applies to background=true only; the command ran without one."
    return outcome


async def run_foreground(
    scope: ToolScope, command: str, *, timeout_s: float, workdir: str | None = None
) -> JSONObject:
    """Run a command to its end and return the result as the model sees it."""
    max_chars = scope.settings.max_output_chars
    try:
        result = await scope.shell.run(
            command, timeout_s=timeout_s, cwd=workdir, max_output_bytes=max_chars * MAX_UTF8_BYTES
        )
    except FileError as error:
        return {**_refused(f"workdir: {error}"), "exit_code": WORKDIR_EXIT_CODE}
    output = shown_output(result, max_chars)
    outcome: JSONObject = {
        "output": _with_timeout_note(output, timeout_s) if result.timed_out else output,
        "exit_code": result.exit_code,
        "error": None,
    }
    meaning = _meaning(command, result)
    if meaning:
        outcome["exit_code_meaning"] = meaning
    return outcome


async def _start(scope: ToolScope, command: str, arguments: JSONObject) -> JSONObject:
    workdir = await _workdir(scope, arguments)
    pty_note = None
    if arguments["pty"] and Capability.PTY not in scope.sandbox.capabilities:
        pty_note = "This sandbox has no pseudo-terminals; the command runs on pipes."
    try:
        started = await scope.processes.start(
            command,
            session=await scope.shell.entered(),
            cwd=workdir,
            shown_cwd=scope.shell.cwd,
            user=scope.shell.user,
            pty=arguments["pty"] and pty_note is None,
            notify_on_complete=arguments["notify_on_complete"],
            watch_patterns=[text for text in arguments.get("watch_patterns") or () if text],
        )
    except FileError as error:
        return {**_refused(f"workdir: {error}"), "exit_code": WORKDIR_EXIT_CODE}
    if started is None:
        return _refused(
            f"{scope.processes.limit} background processes are running already. End one first: "
            "process(action='list'), then process(action='kill', session_id=...)."
        )
    outcome = _started(started)
    if pty_note:
        outcome["pty_note"] = pty_note
    return outcome


def _started(process: BackgroundProcess) -> JSONObject:
    outcome: JSONObject = {
        "output": "Background process started",
        "session_id": process.session_id,
        "pid": process.process.pid,
        "exit_code": 0,
        "error": None,
    }
    if process.notify_on_complete:
        outcome["notify_on_complete"] = True
    if process.watch_patterns:
        outcome["watch_patterns"] = list(process.watch_patterns)
    if not (process.notify_on_complete or process.watch_patterns):
        outcome["hint"] = (
            "Look after it with the process tool: poll, log, wait or kill with this session_id."
        )
    return outcome


async def _workdir(scope: ToolScope, arguments: JSONObject) -> str | None:
    workdir = arguments.get("workdir")
    return await scope.shell.resolve(workdir) if workdir else None


def _refused(error: str) -> JSONObject:
    return {"output": "", "exit_code": -1, "error": error, "status": "error"}


def _with_timeout_note(output: str, timeout_s: float) -> str:
    note = f"[Command timed out after {timeout_s:g}s]"
    return f"{output}\n\n{note}" if output else note


def _meaning(command: str, result: ExecResult) -> str | None:
    if result.exit_code == 0 or result.timed_out or result.signal is not None:
        return None
    return exit_code_meaning(command, result.exit_code)


TERMINAL = Tool(
    name="terminal",
    description=_DESCRIPTION,
    parameters=_PARAMETERS,
    handler=run_terminal,
    deadline_s=math.inf,
)
