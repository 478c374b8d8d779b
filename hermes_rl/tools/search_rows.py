"""From the rows that a search prints to the page that the model sees.

Rows arrive in pieces of any size; only the page is kept, the rest is counted. Work per row is
small and constant, so that a piece never holds the event loop for long.
"""

from __future__ import annotations

import posixpath
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from hermes_rl.tools.globs import expand_braces, glob_to_regex
from hermes_rl.tools.output import encode_json
from hermes_rl.types import JSONObject

__all__ = ["Counts", "Files", "Matches", "Page", "Rows"]

MAX_LINE_CHARS = 500
MAX_PAGE_CHARS = 60_000
"""Of the rows shown, as JSON; a page that would be longer ends earlier and says so."""
GROUPED_FROM = 5
"""Matches: from here on a page is shown as text grouped by file."""

_GNU_ROW = re.compile(rb"([^\0]*)\0(\d+)([:-])(.*)", re.DOTALL)
_PLAIN_ROW = re.compile(rb"(.*?)(:)(\d+):(.*)", re.DOTALL)
_PLAIN_ROW_WITH_CONTEXT = re.compile(rb"(.*?)([:-])(\d+)\2(.*)", re.DOTALL)
_FORMAT = (
    "one block per file: its path on a line of its own, then its matches as '  LINE: TEXT' rows"
)


@dataclass(slots=True, frozen=True)
class Page:
    """Which results to show: ``limit`` of them after the first ``offset``."""

    offset: int
    limit: int


class Rows(Protocol):
    """Takes rows and makes a result of them."""

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        ...

    def result(self) -> JSONObject:
        """Return the result, at the end."""
        ...


class PathFilter:
    """Turns printed paths into those shown, and drops what the glob does not fit."""

    def __init__(self, given: str, glob: str) -> None:
        self._given = given
        globs = expand_braces(glob) if "/" in glob else []
        self._regexes = [glob_to_regex(each.removeprefix("./")) for each in globs]
        self._last: tuple[bytes, str | None] = (b"", None)

    def shown(self, raw: bytes) -> str | None:
        """Return the path as the model should see it, None if it does not fit."""
        if raw != self._last[0]:
            self._last = (raw, self._judge(raw))
        return self._last[1]

    def _judge(self, raw: bytes) -> str | None:
        path = raw.decode("utf-8", "replace")
        if not path.startswith("./"):
            return self._given  # One file was searched, by its absolute path.
        relative = path[2:]
        if self._regexes and not any(regex.match(relative) for regex in self._regexes):
            return None
        return path if self._given == "." else posixpath.join(self._given, relative)

    @property
    def keeps_all(self) -> bool:
        """Nothing is dropped."""
        return not self._regexes


@dataclass(slots=True)
class _Lines:
    """Cuts pieces of output into rows."""

    rest: bytes = b""

    def cut(self, data: bytes) -> list[bytes]:
        rows = (self.rest + data).split(b"\n")
        self.rest = rows.pop()
        return rows


class _Budget:
    """Adds up what a page holds, as JSON."""

    def __init__(self) -> None:
        self._used = 0

    def takes(self, *texts: str) -> bool:
        self._used += sum(len(encode_json(text)) + 20 for text in texts)
        return self._used <= MAX_PAGE_CHARS


def _paged(outcome: JSONObject, page: Page, shown: int, count: int) -> JSONObject:
    """Add how to go on if ``count`` results are more than those up to the end of the page."""
    following = page.offset + shown
    if count > following:
        outcome["truncated"] = True
        outcome["hint"] = (
            f"{count - following} more. Use offset={following} to see them, or narrow the search "
            "with a more specific pattern, path or file_glob."
        )
    elif page.offset and not shown:
        outcome["hint"] = f"offset={page.offset} is past the last of {count} results."
    return outcome


@dataclass(slots=True)
class _Match:
    path: str
    line: int
    content: str
    context: bool = False

    def to_json(self) -> JSONObject:
        row: JSONObject = {"path": self.path, "line": self.line, "content": self.content}
        return {**row, "context": True} if self.context else row


class Matches:
    """Matching lines, with their context."""

    def __init__(self, given: str, glob: str, page: Page, context: int) -> None:
        self._paths = PathFilter(given, glob)
        self._page = page
        self._context = context
        self._lines = _Lines()
        self._budget = _Budget()
        self._kept: list[_Match] = []
        self._before: deque[_Match] = deque(maxlen=context)
        self._after = 0
        self._total = 0
        self._shown = 0
        self._full = False

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        if self._full and not self._context and self._paths.keeps_all:
            self._total += data.count(b"\n")
            return
        for row in self._lines.cut(data):
            self._take(row)

    def _take(self, row: bytes) -> None:
        if row == b"--" and self._context:
            self._before.clear()
            self._after = 0
            return
        parsed = _parsed(row, with_context=self._context > 0)
        path = None if parsed is None else self._paths.shown(parsed[0])
        if parsed is None or path is None:
            return
        _, line, is_match, text = parsed
        if is_match:
            self._total += 1
        if self._full or (is_match and self._total <= self._page.offset):
            self._before.clear()
            self._after = 0
            return
        match = _Match(path, line, _cut(text), not is_match)
        if is_match:
            self._keep_match(match)
        elif self._after > 0:
            self._after -= 1
            self._kept.append(match)
        else:
            self._before.append(match)

    def _keep_match(self, match: _Match) -> None:
        rows = [*self._before, match]
        self._before.clear()
        fits = self._budget.takes(*(row.content for row in rows), match.path)
        if self._shown >= self._page.limit or not (fits or self._shown == 0):
            self._full = True
            return
        self._kept += rows
        self._shown += 1
        self._after = self._context

    def result(self) -> JSONObject:
        """Return the page."""
        outcome: JSONObject = {"total_count": self._total}
        if self._shown < GROUPED_FROM:
            outcome["matches"] = [match.to_json() for match in self._kept]
        else:
            outcome["matches_format"] = _FORMAT
            outcome["matches_text"] = _grouped(self._kept)
        return _paged(outcome, self._page, self._shown, self._total)


def _parsed(row: bytes, *, with_context: bool) -> tuple[bytes, int, bool, bytes] | None:
    """Return (path, line, is a match, text) of a row, None if it is something else."""
    match = _GNU_ROW.match(row)
    if match is not None:
        path, number, sign, text = match.groups()
        return path, int(number), sign == b":", text
    # BusyBox: a path that itself looks like "name:1:" cannot be told apart.
    match = (_PLAIN_ROW_WITH_CONTEXT if with_context else _PLAIN_ROW).match(row)
    if match is None:
        return None
    path, sign, number, text = match.groups()
    return path, int(number), sign == b":", text


def _cut(line: bytes) -> str:
    text = line.decode("utf-8", "replace").rstrip("\r")
    return text if len(text) <= MAX_LINE_CHARS else text[:MAX_LINE_CHARS] + "..."


def _grouped(matches: list[_Match]) -> str:
    out: list[str] = []
    path = None
    for match in matches:
        if match.path != path:
            path = match.path
            out.append(path)
        out.append(f"  {match.line}{'-' if match.context else ':'} {match.content}")
    return "\n".join(out)


class Counts:
    """Files that match: their paths, or how many lines of each do."""

    def __init__(self, given: str, glob: str, page: Page, *, names_only: bool) -> None:
        self._paths = PathFilter(given, glob)
        self._page = page
        self._names_only = names_only
        self._lines = _Lines()
        self._budget = _Budget()
        self._counts: dict[str, int] = {}
        self._files = 0
        self._total = 0
        self._full = False

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        for row in self._lines.cut(data):
            raw, _, number = row.rpartition(b":")
            path = self._paths.shown(raw) if number.isdigit() else None
            if path is not None:
                self._take(path, int(number))

    def _take(self, path: str, count: int) -> None:
        self._files += 1
        self._total += count
        if self._files <= self._page.offset or self._full:
            return
        self._full = len(self._counts) >= self._page.limit or not self._budget.takes(path)
        if not self._full:
            self._counts[path] = count

    def result(self) -> JSONObject:
        """Return the page."""
        outcome: JSONObject = (
            {"total_count": self._files, "files": list(self._counts)}
            if self._names_only
            else {"total_count": self._total, "counts": self._counts}
        )
        return _paged(outcome, self._page, len(self._counts), self._files)


@dataclass(slots=True)
class Files:
    """Files found by name, newest first."""

    given: str
    glob: str
    page: Page
    _files: list[str] = field(default_factory=list)
    _total: int = 0
    _full: bool = False
    _lines: _Lines = field(default_factory=_Lines)
    _budget: _Budget = field(default_factory=_Budget)
    _shown: Callable[[bytes], str | None] = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the glob."""
        self._shown = PathFilter(self.given, self.glob).shown

    def feed(self, data: bytes) -> None:
        """Take the next piece of output."""
        for row in self._lines.cut(data):
            path = self._shown(row.partition(b" ")[2])
            if path is None:
                continue
            self._total += 1
            if self._total <= self.page.offset or self._full:
                continue
            self._full = len(self._files) >= self.page.limit or not self._budget.takes(path)
            if not self._full:
                self._files.append(path)

    def result(self) -> JSONObject:
        """Return the page."""
        outcome: JSONObject = {"total_count": self._total, "files": self._files}
        return _paged(outcome, self.page, len(self._files), self._total)
