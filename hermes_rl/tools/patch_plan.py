"""A V4A patch against the files of a sandbox: checked as a whole, then carried out.

Planning reads every file once and keeps the state that each change leaves behind, so that later
changes of the same patch build on earlier ones.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes_rl.errors import FileError, SandboxFileNotFound, SandboxFileTooLarge
from hermes_rl.tools.diff import unified_diff
from hermes_rl.tools.host_guard import refuse_write
from hermes_rl.tools.scope import ToolScope
from hermes_rl.tools.text_file import MAX_TEXT_BYTES, TextFile, looks_binary
from hermes_rl.tools.threads import in_thread
from hermes_rl.tools.v4a import FileChange, apply_hunks

__all__ = ["Plan", "Step", "apply_plan", "make_plan"]

COMMAND_TIMEOUT_S = 30.0
"""For removing and moving a file."""
MAX_MESSAGE_BYTES = 4_000


@dataclass(slots=True)
class Step:
    """One change and what it does.

    Attributes:
        change: As parsed.
        path: Absolute path.
        target: Absolute path that the file is moved to, "" if it is not.
        data: New content to write, None if none.
        before: Text before, None where there was no (text) file.
        after: Text after, None where there is no new text.
        done: Carried out.
    """

    change: FileChange
    path: str
    target: str = ""
    data: bytes | None = None
    before: str | None = None
    after: str | None = None
    done: bool = False

    @property
    def touched(self) -> list[str]:
        """Absolute paths that change, the resulting one last."""
        return [self.path, self.target] if self.target else [self.path]

    def diff(self) -> str:
        """Return the unified diff of the change."""
        if self.change.kind == "move" or (self.target and self.before == self.after):
            return f"# Moved: {self.path} -> {self.target}\n"
        if self.change.kind == "delete" and self.before is None:
            return f"# Deleted: {self.path}\n"
        return unified_diff(self.before, self.after, self.path, self.target or None)


@dataclass(slots=True)
class Plan:
    """Steps in order; with ``errors`` nothing may be done."""

    steps: list[Step] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Entry:
    """A file as the plan sees it: bytes, or None if too large to be held."""

    data: bytes | None


class _Files:
    """The sandbox's files as they will be after the steps planned so far."""

    def __init__(self, scope: ToolScope) -> None:
        self._scope = scope
        self._entries: dict[str, _Entry | None] = {}

    async def get(self, path: str) -> _Entry | None:
        """Return a file, None if there is none.

        Raises:
            FileError: It is a directory, or not readable.
        """
        if path not in self._entries:
            try:
                data = await self._scope.read(path, max_bytes=MAX_TEXT_BYTES)
                self._entries[path] = _Entry(data)
            except SandboxFileNotFound:
                self._entries[path] = None
            except SandboxFileTooLarge:
                self._entries[path] = _Entry(None)
        return self._entries[path]

    def put(self, path: str, entry: _Entry | None) -> None:
        self._entries[path] = entry


async def make_plan(scope: ToolScope, changes: Sequence[FileChange]) -> Plan:
    """Check every change against the files; writes nothing."""
    plan = Plan()
    files = _Files(scope)
    for change in changes:
        step = Step(change, await scope.shell.resolve(change.path))
        if change.target:
            step.target = await scope.shell.resolve(change.target)
        try:
            problems = _guarded(scope, step) or await _check(files, step)
        except FileError as error:
            problems = [str(error)]
        plan.errors += [f"{change.shown}: {problem}" for problem in problems]
        plan.steps.append(step)
    return plan


def _guarded(scope: ToolScope, step: Step) -> list[str]:
    if not scope.guard_host:
        return []
    return [refusal for path in step.touched if (refusal := refuse_write(path))]


async def _check(files: _Files, step: Step) -> list[str]:
    """Fill in the step; returns what stands against it."""
    change = step.change
    entry = await files.get(step.path)
    if change.kind == "add":
        if entry is not None:
            return ["the file exists already; change it with '*** Update File:'"]
        step.after = "".join(line + "\n" for line in change.content)
        step.data = step.after.encode("utf-8", "replace")
        files.put(step.path, _Entry(step.data))
        return []
    if entry is None:
        return ["file not found"]
    if step.target and await files.get(step.target) is not None:
        return ["the target exists already; delete it first"]
    if change.kind == "update" and change.hunks:
        problems = await _edit(step, entry)
        if problems:
            return problems
        entry = _Entry(step.data)
    elif change.kind == "delete":
        step.before = _text_of(entry)
    files.put(step.path, None if change.kind == "delete" or step.target else entry)
    if step.target:
        files.put(step.target, entry)
    return []


async def _edit(step: Step, entry: _Entry) -> list[str]:
    if entry.data is None:
        return [f"more than {MAX_TEXT_BYTES >> 20} MiB; edit it with the terminal"]
    if looks_binary(entry.data):
        return ["a binary file; patch edits text only"]
    before = TextFile.decode(entry.data)
    outcome = await in_thread(apply_hunks, before.text, step.change.hunks)
    if outcome.errors:
        return outcome.errors
    step.before, step.after = before.text, outcome.text
    step.data = before.with_text(outcome.text).encode()
    return []


def _text_of(entry: _Entry) -> str | None:
    if entry.data is None or looks_binary(entry.data):
        return None
    return TextFile.decode(entry.data).text


async def apply_plan(scope: ToolScope, plan: Plan) -> str | None:
    """Carry the steps out in order; returns what stopped it, None if all are done."""
    for step in plan.steps:
        try:
            problem = await _carry_out(scope, step)
        except FileError as error:
            problem = str(error)
        if problem:
            return f"{step.change.shown}: {problem}"
        step.done = True
    return None


async def _carry_out(scope: ToolScope, step: Step) -> str | None:
    if step.data is not None:
        await scope.write(step.path, step.data)
        if await scope.read(step.path, max_bytes=2 * MAX_TEXT_BYTES) != step.data:
            return "the file does not hold what was written: something else changes it"
    if step.change.kind == "delete":
        return await _command(scope, f"rm -- {shlex.quote(step.path)}")
    if step.target:
        directory = shlex.quote(posixpath.dirname(step.target) or "/")
        move = f"mv -- {shlex.quote(step.path)} {shlex.quote(step.target)}"
        return await _command(scope, f"mkdir -p -- {directory} && {move}")
    return None


async def _command(scope: ToolScope, command: str) -> str | None:
    result = await scope.run_stateless(
        command, timeout_s=COMMAND_TIMEOUT_S, max_output_bytes=MAX_MESSAGE_BYTES
    )
    if result.exit_code == 0:
        return None
    return result.stderr_text.strip() or f"exit code {result.exit_code}"
