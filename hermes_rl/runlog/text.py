"""A conversation as text: commands, their outputs and exit codes in plain sight."""

from __future__ import annotations

from typing import Any

import orjson

from hermes_rl.types import JSONObject, Message

__all__ = ["message_text"]


def message_text(message: Message) -> str:
    """Return one message as a block with a heading."""
    role = str(message.get("role", "?"))
    parts = []
    if reasoning := message.get("reasoning_content"):
        parts.append(f"(thinking)\n{reasoning}\n(end of thinking)")
    content = _content_text(message.get("content"))
    if role == "tool":
        content = _result_text(content)
    if content:
        parts.append(content)
    parts += [_call_text(call) for call in message.get("tool_calls") or ()]
    return "\n".join([f"=== {role}", *parts])


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(
            str(part["text"]) if isinstance(part, dict) and "text" in part else f"[{_kind(part)}]"
            for part in content
        )
    return "" if content is None else str(content)


def _kind(part: Any) -> str:
    return str(part.get("type", "part")) if isinstance(part, dict) else "part"


def _call_text(call: JSONObject) -> str:
    """Return ``$ command`` for a terminal call, ``name {arguments}`` for any other."""
    function = call.get("function") or {}
    name, raw = str(function.get("name")), str(function.get("arguments"))
    arguments = _object(raw)
    if name == "terminal" and arguments is not None and "command" in arguments:
        rest = {key: value for key, value in arguments.items() if key != "command"}
        suffix = f"   {orjson.dumps(rest).decode()}" if rest else ""
        return f"$ {arguments['command']}{suffix}"
    return f"{name} {raw}"


def _result_text(content: str) -> str:
    """Return a tool's JSON result as its text and then its other fields."""
    result = _object(content)
    if result is None:
        return content
    text = next((result[key] for key in ("output", "content") if result.get(key)), "")
    rest = [
        f"{key.replace('_', ' ')} {value if isinstance(value, str) else _compact(value)}"
        for key, value in result.items()
        if key not in ("output", "content") and value is not None
    ]
    return "\n".join(filter(None, [str(text).rstrip("\n"), f"[{', '.join(rest)}]" if rest else ""]))


def _object(text: str) -> JSONObject | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def _compact(value: Any) -> str:
    return orjson.dumps(value).decode()
