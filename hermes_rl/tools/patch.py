"""The ``patch`` tool: edit files by replacing a passage, or by a V4A patch over several files.

Every file is read once, edited in memory, written once and read again: a result says success only
if the file then holds what was meant. Line ends, byte order mark, undecodable bytes, mode and
owner of a file stay as they were. A V4A patch is checked against all files before the first one
is written; if writing fails half-way, the result says what was done.

``replace`` gives ``{"success", "diff", "files_modified", "lint", "resolved_path"}``; ``patch``
gives ``{"success", "diff", "files_modified", "files_created", "files_deleted", "lint"}``, where
``lint`` is by file.
"""

from __future__ import annotations

from hermes_rl.errors import FileError
from hermes_rl.tools.diff import unified_diff
from hermes_rl.tools.host_guard import refuse_write
from hermes_rl.tools.patch_plan import apply_plan, make_plan
from hermes_rl.tools.replacement import Replacement, replace_text
from hermes_rl.tools.scope import ToolScope
from hermes_rl.tools.syntax import check_syntax
from hermes_rl.tools.text_file import MAX_TEXT_BYTES, TextFile, looks_binary
from hermes_rl.tools.threads import in_thread
from hermes_rl.tools.tool import Tool
from hermes_rl.tools.v4a import parse_patch
from hermes_rl.types import JSONObject

__all__ = ["PATCH"]

MANY_FAILURES = 3
"""In a row on one file: from here on the hint asks for another approach."""

_DESCRIPTION = """\
Edit files. mode 'replace': give path, old_string (enough of the file to be unique) and \
new_string; small differences in blanks and quotes are forgiven. mode 'patch': give a V4A patch \
that may update, add, delete and move several files:

*** Begin Patch
*** Update File: path
@@ a line before the change @@
 context
-removed
+added
*** Add File: new_path
+content
*** Delete File: path
*** Move File: old_path -> new_path
*** End Patch

The result has a unified diff and a syntax check."""

_PARAMETERS: JSONObject = {
    "type": "object",
    "properties": {
        "mode": {
            "type": "string",
            "enum": ["replace", "patch"],
            "default": "replace",
            "description": "How the edit is described.",
        },
        "path": {"type": "string", "description": "replace: the file to edit."},
        "old_string": {
            "type": "string",
            "description": "replace: text to be replaced; unique unless replace_all is true.",
        },
        "new_string": {
            "type": "string",
            "description": "replace: text to put there; empty = delete the old text.",
        },
        "replace_all": {
            "type": "boolean",
            "default": False,
            "description": "replace: replace every occurrence.",
        },
        "patch": {"type": "string", "description": "patch: the V4A patch."},
        "cross_profile": {
            "type": "boolean",
            "default": False,
            "description": "Has no effect here; understood for compatibility.",
        },
    },
    "required": ["mode"],
}


async def run_patch(scope: ToolScope, arguments: JSONObject) -> JSONObject:
    """Run one ``patch`` call."""
    if arguments["mode"] == "patch":
        text = arguments.get("patch")
        return await _apply_patch(scope, text) if text else {"error": "patch content required"}
    path, old, new = (arguments.get(name) for name in ("path", "old_string", "new_string"))
    if not path:
        return {"error": "path required"}
    if old is None or new is None:
        return {"error": "old_string and new_string required"}
    full = await scope.shell.resolve(path)
    refusal = refuse_write(full) if scope.guard_host else None
    if refusal:
        return {"success": False, "error": refusal}
    try:
        return await _replace(scope, full, old, new, replace_all=arguments["replace_all"])
    except FileError as error:
        return {"success": False, "error": f"Failed to edit {path}: {error}"}


async def _replace(
    scope: ToolScope, full: str, old: str, new: str, *, replace_all: bool
) -> JSONObject:
    data = await scope.read(full, max_bytes=MAX_TEXT_BYTES)
    if looks_binary(data):
        return {"success": False, "error": f"{full} is a binary file; patch edits text only."}
    before = TextFile.decode(data)
    replaced = await in_thread(
        replace_text,
        before.text,
        before.localised(old),
        before.localised(new),
        replace_all=replace_all,
    )
    if replaced.error is not None:
        return _failed(scope, full, replaced)
    scope.patch_failures.pop(full, None)
    after = before.with_text(replaced.text)
    await scope.write(full, after.encode())
    if await scope.read(full, max_bytes=MAX_TEXT_BYTES * 2) != after.encode():
        error = f"{full} does not hold what was written: something else changes it. Read it again."
        return {"success": False, "error": error}
    return {
        "success": True,
        "diff": await in_thread(unified_diff, before.text, after.text, full),
        "files_modified": [full],
        "lint": await lint_of_edit(full, before.text, after.text),
        "resolved_path": full,
    }


def _failed(scope: ToolScope, full: str, replaced: Replacement) -> JSONObject:
    outcome: JSONObject = {"success": False, "error": replaced.error}
    failures = scope.patch_failures[full] = scope.patch_failures.get(full, 0) + 1
    if failures >= MANY_FAILURES:
        outcome["_hint"] = (
            f"This is failure #{failures} in a row on this file. Read the passage with read_file "
            "and quote it exactly, or rewrite the file with write_file."
        )
    elif replaced.not_found:
        outcome["_hint"] = "old_string not found. Use read_file to see what the file has there."
    return outcome


async def lint_of_edit(path: str, before: str | None, after: str) -> JSONObject:
    """Check ``after``; an error that the file already had is marked as such."""
    lint = await check_syntax(path, after)
    if lint["status"] == "error" and before is not None:
        earlier = await check_syntax(path, before)
        if earlier["status"] == "error":
            lint["message"] = "The file had a syntax error before this edit too."
    return lint


async def _apply_patch(scope: ToolScope, text: str) -> JSONObject:
    parsed = parse_patch(text)
    if parsed.error:
        return {"success": False, "error": parsed.error}
    plan = await make_plan(scope, parsed.changes)
    if plan.errors:
        listed = "\n".join(f"  • {error}" for error in plan.errors)
        return {
            "success": False,
            "error": f"Patch validation failed (no files were modified):\n{listed}",
            "_hint": "Read the files named above with read_file, then send a corrected patch.",
        }
    problem = await apply_plan(scope, plan)
    done = [step for step in plan.steps if step.done]
    outcome: JSONObject = {
        "success": problem is None,
        "diff": "".join([await in_thread(step.diff) for step in done]),
        "files_modified": list(dict.fromkeys(path for step in done for path in step.touched)),
        "files_created": [step.change.path for step in done if step.change.kind == "add"],
        "files_deleted": [step.change.path for step in done if step.change.kind == "delete"],
        "lint": {
            step.change.shown: await lint_of_edit(step.touched[-1], step.before, step.after)
            for step in done
            if step.after is not None
        },
    }
    if problem is not None:
        outcome["error"] = f"Apply phase failed; files_modified lists what was done:\n  • {problem}"
    return outcome


PATCH = Tool(name="patch", description=_DESCRIPTION, parameters=_PARAMETERS, handler=run_patch)
