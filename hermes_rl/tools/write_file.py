"""The ``write_file`` tool: write a whole file, exactly as given.

The content is written byte for byte as UTF-8; nothing of an earlier file is carried over. The
write is atomic, an existing file keeps its mode and owner, a new one gets 0666 less the umask.
``dirs_created`` says whether the directory had to be made.

Fail-closed rule: content for ``.json``, ``.yaml``, ``.yml`` and ``.toml`` that does not parse is
refused and nothing is written, because a broken configuration file is nearly always a slip that
costs more turns later; the error says how to write it on purpose. An empty file is always
accepted, and what :mod:`hermes_rl.tools.syntax` skips is never refused.
"""

from __future__ import annotations

import itertools
import posixpath
import re

from hermes_rl.errors import FileError, SandboxFileNotFound
from hermes_rl.tools.host_guard import refuse_write
from hermes_rl.tools.scope import ToolScope
from hermes_rl.tools.syntax import STRICT_EXTENSIONS, check_syntax
from hermes_rl.tools.tool import Tool
from hermes_rl.types import JSONObject

__all__ = ["WRITE_FILE"]

NUMBERED_SHARE = 0.60
"""Of the lines: more with consecutive ``N|`` in front look like pasted read_file output."""
_NUMBERED = re.compile(r"^(\d+)\|", re.MULTILINE)

_DESCRIPTION = """\
Write a file, replacing what was there; parent directories are made. The content is written \
exactly as given. The result has a syntax check for .py, .json, .yaml and .toml; JSON, YAML and \
TOML that does not parse is not written at all. To change part of a file use patch."""

_PARAMETERS: JSONObject = {
    "type": "object",
    "properties": {
        "path": {
            "type": "string",
            "description": "File to write: absolute, relative to the working directory, or ~/...",
        },
        "content": {"type": "string", "description": "The whole new content."},
        "cross_profile": {
            "type": "boolean",
            "default": False,
            "description": "Has no effect here; understood for compatibility.",
        },
    },
    "required": ["path", "content"],
}


async def run_write_file(scope: ToolScope, arguments: JSONObject) -> JSONObject:
    """Run one ``write_file`` call."""
    content: str = arguments["content"]
    path: str = arguments["path"]
    full = await scope.shell.resolve(path)
    if not path or path.endswith("/"):
        return _not_written(full, f"{path!r} names a directory; give the path of a file.")
    refusal = refuse_write(full) if scope.guard_host else None
    if refusal:
        return _not_written(full, refusal)
    lint = await check_syntax(full, content)
    if lint["status"] == "error" and content.strip() and _is_strict(full):
        return _not_written(full, _refusal(full, lint["output"]))
    data = content.encode("utf-8", "replace")
    try:
        makes_directory = not await _is_there(scope, posixpath.dirname(full))
        await scope.write(full, data)
    except FileError as error:
        return _not_written(full, f"Failed to write file: {error}")
    outcome: JSONObject = {
        "bytes_written": len(data),
        "dirs_created": makes_directory,
        "lint": lint,
        "resolved_path": full,
        "files_modified": [full],
    }
    if _looks_numbered(content):
        outcome["_warning"] = (
            "The content begins its lines with 'N|', as read_file shows them; the numbers were "
            "written into the file. If they are not meant, write it again without them."
        )
    return outcome


def _is_strict(path: str) -> bool:
    return posixpath.splitext(path)[1].lower() in STRICT_EXTENSIONS


def _refusal(path: str, problem: str) -> str:
    return (
        f"Refusing to write {path}: the content is not valid ({problem}). The file was NOT "
        "created or modified. Fix the content and retry; if it is meant to be invalid, write it "
        "with the terminal."
    )


def _not_written(path: str, error: str) -> JSONObject:
    return {"bytes_written": 0, "dirs_created": False, "error": error, "resolved_path": path}


async def _is_there(scope: ToolScope, directory: str) -> bool:
    try:
        await scope.read(directory or "/", max_bytes=0)
    except SandboxFileNotFound:
        return False
    except FileError:
        return True  # A directory, as it should be; anything else fails in the write itself.
    return True


def _looks_numbered(content: str) -> bool:
    numbers = [int(match[1]) for match in _NUMBERED.finditer(content[:100_000])]
    lines = content[:100_000].count("\n") + 1
    follow = sum(b == a + 1 for a, b in itertools.pairwise(numbers))
    return len(numbers) >= 3 and follow + 1 >= NUMBERED_SHARE * lines


WRITE_FILE = Tool(
    name="write_file",
    description=_DESCRIPTION,
    parameters=_PARAMETERS,
    handler=run_write_file,
)
