"""The V4A patch format: several files and edits in one text.

::

    *** Begin Patch
    *** Update File: src/a.py
    @@ def f():
     context
    -old line
    +new line
    *** Add File: notes.txt
    +every line of the new file
    *** Delete File: old.txt
    *** Move File: b.txt -> c.txt
    *** End Patch

The begin and end marks are optional. An Update may be followed by ``*** Move to: PATH``. Inside an
Update, ``@@`` starts a hunk and may name a line before it; a line without a mark is context;
``*** End of File`` ties the hunk to the end. Ranges as in unified diffs (``@@ -1,2 +1,2 @@``) are
read over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hermes_rl.tools.matching import find_lines
from hermes_rl.tools.replacement import closest_passages, in_manner_of

__all__ = ["FileChange", "Hunk", "ParsedPatch", "apply_hunks", "parse_patch"]

_HEADER = re.compile(r"\*\*\* (Update|Add|Delete|Move) File: *(.*?) *\Z")
_MOVE_TO = re.compile(r"\*\*\* Move to: *(.*?) *\Z")
_RANGES = re.compile(r"-\d+(?:,\d+)? \+\d+(?:,\d+)?")
MAX_SHOWN_MATCHES = 5

Op = Literal[" ", "-", "+"]


@dataclass(slots=True)
class Hunk:
    """One edit: lines kept, removed and added, in order."""

    hint: str = ""
    lines: list[tuple[Op, str]] = field(default_factory=list)
    at_end: bool = False
    blanks: int = 0
    """Empty lines at the end so far: context if more follows, else the layout of the patch."""

    def add(self, op: Op, text: str) -> None:
        """Add a line, after the empty ones before it."""
        self.lines += [(" ", "")] * self.blanks
        self.blanks = 0
        self.lines.append((op, text))

    @property
    def old(self) -> list[str]:
        """Lines before the edit."""
        return [text for op, text in self.lines if op != "+"]

    @property
    def new(self) -> list[str]:
        """Lines after the edit."""
        return [text for op, text in self.lines if op != "-"]


@dataclass(slots=True)
class FileChange:
    """What is to be done with one file. ``target`` is set for moves."""

    kind: Literal["update", "add", "delete", "move"]
    path: str
    target: str = ""
    hunks: list[Hunk] = field(default_factory=list)
    content: list[str] = field(default_factory=list)

    @property
    def shown(self) -> str:
        """The file as results name it."""
        return f"{self.path} -> {self.target}" if self.target else self.path


@dataclass(slots=True)
class ParsedPatch:
    """The changes in order, or the ``error`` to tell the model."""

    changes: list[FileChange] = field(default_factory=list)
    error: str = ""


def parse_patch(text: str) -> ParsedPatch:
    """Parse a patch; nothing is read or written."""
    parsed = ParsedPatch()
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if line.strip() in ("*** Begin Patch", "*** End Patch"):
            continue
        problem = _take(parsed.changes, line)
        if problem:
            return ParsedPatch(error=f"Failed to parse patch: line {number}: {problem}")
    problem = _incomplete(parsed.changes)
    return ParsedPatch(error=f"Failed to parse patch: {problem}") if problem else parsed


def _take(changes: list[FileChange], line: str) -> str:
    """Add one line to ``changes``; returns what is wrong with it, "" if nothing is."""
    header = _HEADER.match(line)
    if header:
        return _open(changes, header[1], header[2])
    if not changes:
        return "" if not line.strip() else f"{line[:60]!r} stands before any '*** ... File:' line"
    change = changes[-1]
    move = _MOVE_TO.match(line)
    if move and change.kind == "update":
        change.target = move[1]
        return "" if move[1] else "'*** Move to:' names no path"
    if line.startswith("*** ") and line.strip() != "*** End of File":
        return f"unknown instruction {line[:60]!r}"
    if change.kind == "update":
        _extend(change, line)
        return ""
    if change.kind == "add" and line.startswith("+"):
        change.content.append(line[1:])
        return ""
    if not line.strip() or line.strip() == "*** End of File":
        return ""
    if change.kind == "add":
        return f"every line of an added file starts with '+', not {line[:60]!r}"
    return f"{change.kind} takes no content, but {line[:60]!r} follows"


def _open(changes: list[FileChange], verb: str, rest: str) -> str:
    path, target = rest, ""
    if verb == "Move":
        path, arrow, target = (part.strip() for part in rest.partition("->"))
        if not arrow or not target:
            return "a move is written '*** Move File: OLD -> NEW'"
    if not path:
        return f"'*** {verb} File:' names no path"
    kinds: dict[str, Literal["update", "add", "delete", "move"]] = {
        "Update": "update",
        "Add": "add",
        "Delete": "delete",
        "Move": "move",
    }
    changes.append(FileChange(kinds[verb], path, target))
    return ""


def _extend(change: FileChange, line: str) -> None:
    """Add a line to the last hunk of an update, or open a new hunk."""
    if line.startswith("@@"):
        hint = line.strip().removeprefix("@@").removesuffix("@@")
        change.hunks.append(Hunk(_RANGES.sub("", hint).strip(" @")))
        return
    if not change.hunks:
        if not line.strip():
            return
        change.hunks.append(Hunk())
    hunk = change.hunks[-1]
    if line.strip() == "*** End of File":
        hunk.at_end = True
    elif not line:
        hunk.blanks += 1
    elif line[0] in "+- ":
        hunk.add("+" if line[0] == "+" else "-" if line[0] == "-" else " ", line[1:])
    elif not line.startswith("\\ No newline"):
        hunk.add(" ", line)


def _incomplete(changes: Sequence[FileChange]) -> str:
    if not changes:
        return "it names no file; start with '*** Update File: PATH' (or Add, Delete, Move)"
    for change in changes:
        if change.kind != "update":
            continue
        change.hunks = [hunk for hunk in change.hunks if hunk.lines]
        if not change.hunks and not change.target:
            return f"UPDATE {change.path!r}: no hunks found"
        if change.hunks and not any(op != " " for hunk in change.hunks for op, _ in hunk.lines):
            return f"UPDATE {change.path!r}: only context lines; mark changes with '-' and '+'"
    return ""


@dataclass(slots=True)
class HunkOutcome:
    """The new ``text``, or the ``errors``, one per hunk that does not fit."""

    text: str = ""
    errors: list[str] = field(default_factory=list)


def apply_hunks(text: str, hunks: Sequence[Hunk]) -> HunkOutcome:
    """Apply hunks in order; a failing one is reported and the rest still checked."""
    lines = text.split("\n")
    ends_line = lines[-1] == ""
    if ends_line:
        lines.pop()
    errors = []
    cursor = 0
    for number, hunk in enumerate(hunks, 1):
        place = _locate(lines, hunk, cursor)
        if isinstance(place, str):
            label = f"hunk {number} ({f'hint {hunk.hint!r}' if hunk.hint else 'no hint'})"
            errors.append(f"{label} {place}")
            continue
        start, end, exact = place
        replaced = _rewritten(lines[start:end], hunk, exact=exact)
        lines[start:end] = replaced
        cursor = start + len(replaced)
    if errors:
        return HunkOutcome(errors=errors)
    return HunkOutcome("\n".join(lines) + ("\n" if ends_line and lines else ""))


def _locate(lines: Sequence[str], hunk: Hunk, cursor: int) -> tuple[int, int, bool] | str:
    """Return (first line, end, found exactly), or what is wrong."""
    start = cursor
    if hunk.hint:
        hinted = _find_hint(lines, hunk.hint, cursor)
        if hinted is None and not hunk.old:
            return f"not found: no line contains the hint {hunk.hint!r}"
        start = cursor if hinted is None else hinted
    if not hunk.old:
        position = start + 1 if hunk.hint and not hunk.at_end else len(lines)
        return position, position, True
    for offset in dict.fromkeys((start, cursor, 0)):
        found = find_lines(lines[offset:], hunk.old)
        if found is not None:
            break
    else:
        wanted = "\n".join(hunk.old)
        return f"not found{closest_passages(chr(10).join(lines), wanted)}"
    spans = [(first + offset, last + offset) for first, last in found.spans]
    if hunk.at_end:
        spans = [span for span in spans if span[1] == len(lines)] or spans[-1:]
    if len(spans) > 1 and not (hunk.hint and offset == start):
        shown = ", ".join(str(first + 1) for first, _ in spans[:MAX_SHOWN_MATCHES])
        return (
            f"is ambiguous: it fits at lines {shown}. Add context lines, or a line before it "
            "after '@@'"
        )
    return (*spans[0], found.strategy == "exact")


def _find_hint(lines: Sequence[str], hint: str, cursor: int) -> int | None:
    for start in dict.fromkeys((cursor, 0)):
        for index in range(start, len(lines)):
            if hint in lines[index]:
                return index
    return None


def _rewritten(region: Sequence[str], hunk: Hunk, *, exact: bool) -> list[str]:
    """Return what replaces ``region``; context lines stay as the file has them."""
    old = hunk.old
    if len(region) != len(old):
        return in_manner_of("\n".join(region), "\n".join(old), "\n".join(hunk.new)).split("\n")
    carriage = "\r" if region and all(line.endswith("\r") for line in region) else ""
    before, given = "\n".join(region), "\n".join(old)
    result = []
    position = 0
    for op, text in hunk.lines:
        if op == "+":
            fitted = text if exact else in_manner_of(before, given, text).rstrip("\r")
            result.append(fitted + carriage)
            continue
        if op == " ":
            result.append(region[position])
        position += 1
    return result
