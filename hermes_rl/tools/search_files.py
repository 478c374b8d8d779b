r"""The ``search_files`` tool: search in files (``grep -E``) or for files (``find``).

It runs the sandbox's own ``find``, ``sort`` and ``grep`` and never ripgrep, so that the result
does not depend on what an image happens to have. The rules:

* Patterns are extended regular expressions with the usual shorthands; see
  :mod:`hermes_rl.tools.search_pattern`. Each line is matched by itself.
* Below the path that was asked for, names that begin with a dot are skipped, directories with all
  they hold; a glob that begins with a dot, or a hidden path itself, is searched. Nothing else is
  skipped (no ``.gitignore``); links are not followed; files with a NUL byte count as binary.
* Content results are in the order of paths and lines, files newest first.
* ``total_count`` is the number of matches (lines in content mode, files otherwise), not of rows
  shown. Only where the search itself was stopped (``limit_reason``: ``search_timeout`` or
  ``output_limit``) it counts what had been found by then.
* ``truncated`` is there when rows are left, with ``hint`` inside the JSON. Lines are cut at 500
  characters. Context lines have ``context: true`` (``N-`` instead of ``N:`` in grouped text) and
  are not counted.
"""

from __future__ import annotations

import posixpath

from anyio.lowlevel import checkpoint

from hermes_rl.sandbox import ExecResult
from hermes_rl.tools.read_file import similar_files
from hermes_rl.tools.scope import ToolScope
from hermes_rl.tools.search_command import (
    BAD_PATTERN,
    MISSING_PROGRAM,
    NOT_A_DIRECTORY,
    NOT_FOUND,
    content_command,
    files_command,
)
from hermes_rl.tools.search_pattern import PatternError, to_posix
from hermes_rl.tools.search_rows import Counts, Files, Matches, Page, Rows
from hermes_rl.tools.tool import Tool
from hermes_rl.types import JSONObject

__all__ = ["SEARCH_FILES"]

DEFAULT_LIMIT = 50
MAX_LIMIT = 1_000
MAX_CONTEXT = 50
TIMEOUT_S = 60.0
MAX_SCANNED_BYTES = 64 << 20
"""Of rows that the search may print; beyond that it is stopped and says so."""
PIECE_BYTES = 16_384
"""Of rows taken at once, so that many short ones do not hold the event loop."""
MAX_ERROR_BYTES = 2_000

_DESCRIPTION = """\
Search file contents by regular expression (target 'content'), or find files by name (target \
'files', newest first). Prefer it to grep, find and ls.

Patterns are extended regular expressions (| + ? {} ( ) work unescaped; \\d \\w \\s \\b and (?i) \
too), matched line by line. Hidden files and binary files are skipped. total_count is the true \
number of matches; page with limit and offset."""

_PARAMETERS: JSONObject = {
    "type": "object",
    "properties": {
        "pattern": {
            "type": "string",
            "description": "content: a regular expression. files: a glob such as '*.py', "
            "'src/**/test_*.py' or '*.{js,ts}'.",
        },
        "target": {
            "type": "string",
            "enum": ["content", "files"],
            "default": "content",
            "description": "What to search.",
        },
        "path": {
            "type": "string",
            "default": ".",
            "description": "Directory (or, for content, one file) to search.",
        },
        "file_glob": {
            "type": "string",
            "description": "content: only files whose name (or path, with a '/') fits this glob.",
        },
        "limit": {
            "type": "integer",
            "default": DEFAULT_LIMIT,
            "description": "How many results to show.",
        },
        "offset": {
            "type": "integer",
            "default": 0,
            "description": "How many results to skip.",
        },
        "output_mode": {
            "type": "string",
            "enum": ["content", "files_only", "count"],
            "default": "content",
            "description": "content: matching lines. files_only: paths. count: lines per file.",
        },
        "context": {
            "type": "integer",
            "default": 0,
            "description": "content: lines to show before and after each match.",
        },
    },
    "required": ["pattern"],
}


async def run_search_files(scope: ToolScope, arguments: JSONObject) -> JSONObject:
    """Run one ``search_files`` call."""
    pattern: str = arguments["pattern"]
    if not pattern:
        return _failed("The pattern is empty.")
    page = Page(max(0, arguments["offset"]), min(max(1, arguments["limit"]), MAX_LIMIT))
    if arguments["target"] == "files":
        path, glob = _split_absolute(arguments["path"], pattern)
        root = await scope.shell.resolve(path)
        rows: Rows = Files(path, glob, page)
        return await _search(scope, path, root, files_command(root, glob), rows)
    return await _search_content(scope, arguments, page)


async def _search_content(scope: ToolScope, arguments: JSONObject, page: Page) -> JSONObject:
    path, mode = arguments["path"], arguments["output_mode"]
    glob = arguments.get("file_glob") or ""
    context = min(max(0, arguments["context"]), MAX_CONTEXT) if mode == "content" else 0
    try:
        posix = to_posix(arguments["pattern"])
    except PatternError as error:
        return _failed(f"Bad pattern: {error}")
    root = await scope.shell.resolve(path)
    command = content_command(root, posix, glob=glob, counts=mode != "content", context=context)
    rows: Rows = (
        Matches(path, glob, page, context)
        if mode == "content"
        else Counts(path, glob, page, names_only=mode == "files_only")
    )
    return await _search(scope, path, root, command, rows)


def _failed(error: str) -> JSONObject:
    return {"total_count": 0, "error": error}


def _split_absolute(path: str, glob: str) -> tuple[str, str]:
    """Return (directory, glob below it): an absolute glob names its own directory."""
    if not glob.startswith("/"):
        return path, glob
    parts = glob.split("/")
    fixed = next((i for i, part in enumerate(parts) if set(part) & set("*?[{")), len(parts) - 1)
    return "/".join(parts[:fixed]) or "/", "./" + ("/".join(parts[fixed:]) or "*")


async def _search(scope: ToolScope, path: str, root: str, command: str, rows: Rows) -> JSONObject:
    """Run the command, feed its rows, and return the result or what went wrong."""
    errors = bytearray()
    scanned = 0
    async with scope.sandbox.stream(
        command, timeout_s=TIMEOUT_S, session=None, user=scope.shell.user
    ) as process:
        async for chunk in process:
            if chunk.fd == 2:
                errors += chunk.data[: MAX_ERROR_BYTES - len(errors)]
                continue
            for start in range(0, len(chunk.data), PIECE_BYTES):
                rows.feed(chunk.data[start : start + PIECE_BYTES])
                await checkpoint()
            scanned += len(chunk.data)
            if scanned > MAX_SCANNED_BYTES:
                return {**rows.result(), "limit_reason": "output_limit"}
        result = await process.wait()
    if result.timed_out:
        return {**rows.result(), "limit_reason": "search_timeout"}
    if result.exit_code != 0:
        message = errors.decode("utf-8", "replace").strip()
        return _failed(await _problem(scope, path, root, result, message))
    return rows.result()


async def _problem(scope: ToolScope, path: str, root: str, result: ExecResult, message: str) -> str:
    if result.exit_code == NOT_FOUND:
        similar = await similar_files(scope, path, root)
        hint = f" Similar paths: {', '.join(similar)}" if similar else ""
        return f"Path not found: {path}.{hint}"
    if result.exit_code == NOT_A_DIRECTORY:
        return f"{posixpath.basename(root)} is a file; target 'files' needs a directory as path."
    if result.exit_code == BAD_PATTERN:
        return f"Bad pattern: {message}"
    if result.exit_code == MISSING_PROGRAM:
        return f"The search needs the program {message!r}, which this sandbox does not have."
    return f"Search failed with exit code {result.exit_code}: {message}"


SEARCH_FILES = Tool(
    name="search_files",
    description=_DESCRIPTION,
    parameters=_PARAMETERS,
    handler=run_search_files,
    read_only=True,
    aliases={"target": {"grep": "content", "find": "files"}},
)
