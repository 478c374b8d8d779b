r"""The ``read_file`` tool: a page of a text file with line numbers.

``content`` has ``N|text`` rows without padding. A line end closes a line and opens none: a file
``a\n`` has one line, an empty file has none, and ``total_lines`` counts an unfinished last line.
Files are judged binary by content, never by name. There is no caching: what is shown is what is
there now. Files up to 4 MiB take one round trip.
"""

from __future__ import annotations

import difflib
import posixpath
import shlex
from dataclasses import dataclass

from hermes_rl.errors import (
    FileError,
    SandboxFileNotFound,
    SandboxFileTooLarge,
    SandboxIsADirectory,
)
from hermes_rl.tools.scope import ToolScope
from hermes_rl.tools.text_file import MAX_TEXT_BYTES, looks_binary
from hermes_rl.tools.tool import Tool
from hermes_rl.types import JSONObject

__all__ = ["READ_FILE", "similar_files"]

DEFAULT_LINES = 500
MAX_LINES = 2_000
MAX_LINE_CHARS = 2_000
MAX_PAGE_CHARS = 100_000
MAX_PAGE_BYTES = 500_000
"""Of a page of a file too large to be read whole."""
MAX_SIMILAR = 5
LARGE_FILE_TIMEOUT_S = 60.0
_BOM = b"\xef\xbb\xbf"
_IMAGES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tiff", ".ico"})

_DESCRIPTION = """\
Read a text file. Rows come back as 'LINE|TEXT' with line numbers from 1. Page through long files \
with offset and limit. At most 100,000 characters come back; lines above 2,000 characters are cut. \
Binary files and images are not shown. Prefer it to cat, head and tail."""

_PARAMETERS: JSONObject = {
    "type": "object",
    "properties": {
        "path": {
            "type": "string",
            "description": "File to read: absolute, relative to the working directory, or ~/...",
        },
        "offset": {
            "type": "integer",
            "default": 1,
            "minimum": 1,
            "description": "First line to show, from 1.",
        },
        "limit": {
            "type": "integer",
            "default": DEFAULT_LINES,
            "maximum": MAX_LINES,
            "description": "How many lines to show.",
        },
    },
    "required": ["path"],
}


@dataclass(slots=True, frozen=True)
class _Page:
    """Raw lines ``first``... of a file with ``total_lines`` lines and ``size_bytes`` bytes."""

    lines: list[bytes]
    first: int
    total_lines: int
    size_bytes: int


async def run_read_file(scope: ToolScope, arguments: JSONObject) -> JSONObject:
    """Run one ``read_file`` call."""
    path: str = arguments["path"]
    first = max(1, arguments["offset"])
    count = min(max(1, arguments["limit"]), MAX_LINES)
    full = await scope.shell.resolve(path)
    try:
        data = await scope.read(full, max_bytes=MAX_TEXT_BYTES)
    except SandboxFileTooLarge:
        return await _read_large(scope, path, full, first, count)
    except SandboxFileNotFound:
        return await _missing(scope, path, full)
    except SandboxIsADirectory:
        error = f"{path} is a directory. List it with search_files(target='files', pattern='*')."
        return _nothing(error)
    except FileError as error:
        return _nothing(f"Cannot read {path}: {error}")
    if looks_binary(data):
        return _binary(path, len(data))
    return _shown(_cut_page(data, first, count))


def _cut_page(data: bytes, first: int, count: int) -> _Page:
    total = data.count(b"\n") + (bool(data) and not data.endswith(b"\n"))
    pieces = data.split(b"\n", first - 1 + count)
    last = min(first - 1 + count, total)
    return _Page(pieces[first - 1 : last], first, total, len(data))


async def _read_large(scope: ToolScope, path: str, full: str, first: int, count: int) -> JSONObject:
    """Let the sandbox cut the page out: the file is too large to be moved whole."""
    name, last = shlex.quote(full), first + count - 1
    result = await scope.run_stateless(
        f"set -- $(wc -lc < {name}) && echo $1 $2 $(tail -c 1 {name} | wc -l) && "
        f"sed -n '{first},{last}p;{last}q' {name} | head -c {MAX_PAGE_BYTES}",
        timeout_s=LARGE_FILE_TIMEOUT_S,
        max_output_bytes=2 * MAX_PAGE_BYTES,
    )
    header, _, body = result.stdout.partition(b"\n")
    numbers = header.split()
    if result.exit_code != 0 or len(numbers) != 3 or not all(map(bytes.isdigit, numbers)):
        why = result.stderr_text.strip() or f"exit code {result.exit_code}"
        return _nothing(f"Cannot read {path}: {why}")
    ends, size, last_end = map(int, numbers)
    if looks_binary(body):
        return _binary(path, size)
    total = ends + (1 - last_end)
    lines = body.removesuffix(b"\n").split(b"\n") if body else []
    if len(body) >= MAX_PAGE_BYTES and len(lines) > 1:
        lines.pop()  # Cut somewhere in the middle.
    return _shown(_Page(lines, first, total, size))


def _shown(page: _Page) -> JSONObject:
    rows: list[str] = []
    used = 0
    for number, line in enumerate(page.lines, page.first):
        row = _row(number, line)
        used += len(row) + 1
        if used > MAX_PAGE_CHARS and rows:
            break
        rows.append(row)
    end = page.first + len(rows)
    outcome: JSONObject = {
        "content": "\n".join(rows),
        "total_lines": page.total_lines,
        "file_size": page.size_bytes,
        "truncated": bool(rows) and end <= page.total_lines,
        "is_binary": False,
        "is_image": False,
    }
    lines = f"showing lines {page.first}-{end - 1} of {page.total_lines}"
    if len(rows) < len(page.lines):
        outcome["truncated_by"] = "bytes"
        outcome["next_offset"] = end
        outcome["hint"] = (
            f"Cut at {MAX_PAGE_CHARS:,} characters ({lines}). Use offset={end} to continue."
        )
    elif outcome["truncated"]:
        outcome["hint"] = f"Use offset={end} to continue reading ({lines})"
    elif not rows and page.first > 1:
        outcome["hint"] = f"The file has {page.total_lines} lines; offset={page.first} is past it."
    return outcome


def _row(number: int, line: bytes) -> str:
    if number == 1:
        line = line.removeprefix(_BOM)
    text = line.decode("utf-8", "replace")
    if len(text) > MAX_LINE_CHARS:
        text = text[:MAX_LINE_CHARS] + "... [truncated]"
    return f"{number}|{text}"


def _nothing(error: str, *, size_bytes: int = 0, **flags: bool) -> JSONObject:
    return {
        "content": "",
        "total_lines": 0,
        "file_size": size_bytes,
        "truncated": False,
        "is_binary": False,
        "is_image": False,
        **flags,
        "error": error,
    }


def _binary(path: str, size_bytes: int) -> JSONObject:
    is_image = posixpath.splitext(path)[1].lower() in _IMAGES
    what = "an image" if is_image else "a binary file"
    error = (
        f"{path} is {what} ({size_bytes:,} bytes) and cannot be shown as text. Inspect it with "
        "the terminal (file, xxd, a script)."
    )
    return _nothing(error, size_bytes=size_bytes, is_binary=True, is_image=is_image)


async def _missing(scope: ToolScope, path: str, full: str) -> JSONObject:
    outcome = _nothing(f"File not found: {path}")
    similar = await similar_files(scope, path, full)
    return {**outcome, "similar_files": similar} if similar else outcome


async def similar_files(scope: ToolScope, path: str, full: str) -> list[str]:
    """Return up to five entries of the same directory with a similar name, most similar first."""
    directory, name = posixpath.split(full)
    try:
        entries = await scope.list(directory or "/")
    except FileError:
        return []
    by_lower = {entry.name.lower(): entry.name for entry in entries}
    close = difflib.get_close_matches(name.lower(), by_lower, n=MAX_SIMILAR, cutoff=0.6)
    stem = posixpath.splitext(name.lower())[0]
    close += [each for each in by_lower if stem and stem in each and each not in close]
    parent = posixpath.dirname(path)
    return [posixpath.join(parent, by_lower[each]) for each in close[:MAX_SIMILAR]]


READ_FILE = Tool(
    name="read_file",
    description=_DESCRIPTION,
    parameters=_PARAMETERS,
    handler=run_read_file,
    read_only=True,
    spills=False,
)
