"""The ``todo`` tool: a task list that belongs to the rollout.

Results are ``{"todos": [...], "summary": {...}}``. A later item with an id already used replaces
the earlier one; a blank id becomes ``?``, a blank content ``(no description)``, a blank status
``pending``; with ``merge`` what is left out stays as it was.
"""

from __future__ import annotations

from collections import Counter

from hermes_rl.tools.scope import ToolScope
from hermes_rl.tools.tool import Tool
from hermes_rl.types import JSONObject

__all__ = ["TODO"]

MAX_ITEMS = 256
MAX_CONTENT_CHARS = 4_000
_STATUSES = ["pending", "in_progress", "completed", "cancelled"]

_DESCRIPTION = """\
Keep a list of what is to be done, for work of three steps or more. Without arguments: show it. \
With todos: replace it, or with merge=true update and add items by id. Have one item in_progress \
at a time, and mark it completed as soon as it is."""

_PARAMETERS: JSONObject = {
    "type": "object",
    "properties": {
        "todos": {
            "type": "array",
            "description": "Items, in order of importance. Left out = only show the list.",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "string", "description": "Unique name of the item."},
                    "content": {"type": "string", "description": "What is to be done."},
                    "status": {"type": "string", "enum": _STATUSES, "description": "Its state."},
                },
                "required": ["id", "content", "status"],
            },
        },
        "merge": {
            "type": "boolean",
            "default": False,
            "description": "Update items by id and add new ones, instead of replacing the list.",
        },
    },
}


async def run_todo(scope: ToolScope, arguments: JSONObject) -> JSONObject:
    """Run one ``todo`` call."""
    given = arguments.get("todos")
    if given is not None:
        kept = {item["id"]: item for item in scope.todos} if arguments["merge"] else {}
        for item in given:
            kept[_text(item.get("id")) or "?"] = _item(item, kept)
        scope.todos[:] = list(kept.values())[:MAX_ITEMS]
    counts = Counter(item["status"] for item in scope.todos)
    summary = {"total": len(scope.todos), **{status: counts[status] for status in _STATUSES}}
    return {"todos": list(scope.todos), "summary": summary}


def _item(given: JSONObject, kept: dict[str, JSONObject]) -> JSONObject:
    """Return a complete item; what ``given`` leaves out comes from the one it replaces."""
    id = _text(given.get("id")) or "?"
    before = kept.get(id, {})
    content = _text(given.get("content")) or before.get("content") or "(no description)"
    if len(content) > MAX_CONTENT_CHARS:
        content = content[:MAX_CONTENT_CHARS] + "… [truncated]"
    status = _text(given.get("status")) or before.get("status")
    return {"id": id, "content": content, "status": status if status in _STATUSES else "pending"}


def _text(value: object) -> str:
    return value.strip() if isinstance(value, str) else ""


TODO = Tool(name="todo", description=_DESCRIPTION, parameters=_PARAMETERS, handler=run_todo)
