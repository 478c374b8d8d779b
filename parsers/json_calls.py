"""Recording calls whose arguments are JSON: good ones, bad ones, and ones that never close."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes_rl.parsers.json_value import (
    BadJSON,
    Extent,
    decode,
    decode_arguments,
    encode,
    extent,
)
from hermes_rl.parsers.scan import Finder, Scan, skip_space

__all__ = ["add_arguments", "add_object", "balanced", "invalid_end", "reject_open"]


def balanced(text: str, start: int) -> tuple[Extent, bool]:
    """Return the extent of the JSON value at ``start`` and whether its brackets balance.

    A closing bracket right behind the value is one too many: servers refuse that.
    """
    span = extent(text, start)
    after = skip_space(text, span.end)
    return span, span.is_closed and text[after : after + 1] not in ("}", "]")


def add_object(scan: Scan, start: int, end: int, value: Any, *, call_id: str | None = None) -> None:
    """Record the call object ``value`` that covers ``start`` to ``end``.

    ``parameters`` is accepted for ``arguments``; neither = no arguments.
    """
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name.strip():
        reason = 'a call needs "name": the name of the tool, as a string'
        scan.reject(start, end, code="name", reason=reason)
        return
    arguments = value.get("arguments")
    if arguments is None:
        arguments = value.get("parameters")
    try:
        text = decode_arguments(arguments)
    except BadJSON as error:
        scan.reject(start, end, code=error.code, reason=_because(error), name=name)
        return
    scan.add_call(start, end, name=decode(encode(name)), arguments=text, call_id=call_id)


def add_arguments(
    scan: Scan, start: int, end: int, *, name: str, raw: str, call_id: str | None = None
) -> None:
    """Record the call of ``name`` with the JSON text ``raw``; blank = no arguments."""
    try:
        arguments = decode_arguments(decode(raw) if raw.strip() else None)
    except BadJSON as error:
        scan.reject(start, end, code=error.code, reason=_because(error), name=name)
        return
    scan.add_call(start, end, name=name, arguments=arguments, call_id=call_id)


def reject_open(
    scan: Scan, start: int, end: int, *, span: Extent, is_cut: bool, name: str | None
) -> int:
    """Record a call whose JSON never closes, or closes once too often; return where to go on.

    Args:
        scan: Where to record it.
        start: Where the call begins.
        end: Where it ends unless it is cut off.
        span: How far its JSON was readable.
        is_cut: Whether JSON that is open at the end of the text was cut off there.
        name: Tool name, if it could be read.
    """
    text = scan.text
    if not span.is_closed and span.end == len(text) and is_cut:
        reason = "the call is cut off"
        scan.reject(start, len(text), code="truncated", reason=reason, name=name)
        return len(text)
    if not span.is_closed and span.end == len(text):
        fault = "a string or a bracket is not closed"
    elif span.is_closed:
        fault = f"one closing bracket too many at character {span.end - start} of the call"
    else:
        at = f"at character {span.end - start} of the call"
        fault = f"unexpected {text[span.end]!r} {at}"
    scan.reject(start, end, code="json", reason=f"not valid JSON: {fault}", name=name)
    return end


def invalid_end(
    finder: Finder, opens: Sequence[str], closes: Sequence[str], *, body: int, failed: int
) -> int:
    """Return the end of a malformed call: past its end marker, or at the next start marker.

    Args:
        finder: Of the text.
        opens: Start markers of calls.
        closes: End markers of calls.
        body: Where the body of this call begins.
        failed: Where reading it failed. An end marker in front of that is data, unless the body
            has run into the next call.
    """
    next_start, _ = finder.first(opens, body)
    if not closes:
        return next_start
    close, marker = finder.first(closes, failed if failed <= next_start else body)
    return close + len(marker) if marker and close < next_start else next_start


def _because(error: BadJSON) -> str:
    return str(error) if error.code == "arguments" else f"arguments are not valid JSON: {error}"
