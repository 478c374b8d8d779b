r"""Mistral, all tokenizer generations, told apart by what stands behind ``[TOOL_CALLS]``.

==========  ==========================================================================
v2, v3, v7  ``[TOOL_CALLS] [{"name": N, "arguments": {...}, "id"?: 9 characters}, ...]``
v11         ``[TOOL_CALLS]N[CALL_ID]abc123XYZ[ARGS]{...}`` or ``[TOOL_CALLS]N{...}``
v13         ``[TOOL_CALLS]N[ARGS]{...}``
==========  ==========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from hermes_rl.parsers.format import Format
from hermes_rl.parsers.json_calls import add_arguments, balanced, reject_open
from hermes_rl.parsers.marked_json import MarkedJSON
from hermes_rl.parsers.reasoning import THINK, ReasoningTags
from hermes_rl.parsers.scan import Scan, is_name, skip_space
from hermes_rl.types import JSONObject, ToolCall

__all__ = ["MistralParser"]

_MARKER = "[TOOL_CALLS]"
_CALL_ID = "[CALL_ID]"
_ARGS = "[ARGS]"
_ID = re.compile(r"[A-Za-z0-9]{9}")
_ID_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


class MistralParser(Format):
    """Calls of every Mistral generation; ids are nine letters or digits."""

    name: ClassVar[str] = "mistral"
    reasoning_tags: ClassVar[tuple[ReasoningTags, ...]] = (
        ReasoningTags("[THINK]", "[/THINK]"),
        THINK,
    )

    def scan(
        self, text: str, tools: Sequence[JSONObject] | None, finish_reason: str | None
    ) -> Scan:
        """Find the calls in ``text``."""
        return _MistralScan(text, (_MARKER,), None).run()

    def render(self, calls: Sequence[ToolCall], content: str = "") -> str:
        """Write ``calls`` in the layout of v11; ids that are not Mistral's are left out."""
        parts = [content]
        for call in calls:
            call_id = f"{_CALL_ID}{call.id}" if _ID.fullmatch(call.id) else ""
            parts.append(f"{_MARKER}{call.name}{call_id}{_ARGS}{call.arguments}")
        return "".join(parts)

    def make_id(self, digest: bytes) -> str:
        """Return nine letters and digits."""
        number = int.from_bytes(digest, "big")
        letters = []
        for _ in range(9):
            number, index = divmod(number, len(_ID_ALPHABET))
            letters.append(_ID_ALPHABET[index])
        return "".join(letters)


class _MistralScan(MarkedJSON):
    """JSON behind the marker, or a name and then JSON."""

    def read_body(self, start: int, after: int) -> int:
        """Decide by what stands behind the marker; return where to go on."""
        text = self.found.text
        body = skip_space(text, after)
        if text.startswith(_MARKER, body):  # repeated markers count as one
            self.found.markers -= 1
            self.found.add_markup(start, body)
            return body
        if body == len(text) or (
            text[body] in "{[" and not text.startswith((_ARGS, _CALL_ID), body)
        ):
            return super().read_body(start, after)
        return self._named(start, body)

    def object_id(self, value: Any) -> str | None:
        """Return the call's own id if it is one of Mistral's."""
        call_id = value.get("id") if isinstance(value, dict) else None
        return call_id if isinstance(call_id, str) and _ID.fullmatch(call_id) else None

    def _named(self, start: int, body: int) -> int:
        """Read ``N[CALL_ID]id[ARGS]{...}``, id and args marker optional; return where to go on."""
        text = self.found.text
        name_end, tag = self.finder.first((_CALL_ID, _ARGS, "{", _MARKER), body)
        name = text[body:name_end].strip()
        if tag in ("", _MARKER):
            return self._without_arguments(start, name_end, name)
        if not is_name(name):
            reason = f"{name[:80]!r} is not a tool name"
            self.found.reject(start, name_end, code="name", reason=reason, is_prose=True)
            return name_end
        position, call_id = name_end, None
        if tag == _CALL_ID:
            id_start = name_end + len(_CALL_ID)
            position, tag = self.finder.first((_ARGS, "{", _MARKER), id_start)
            call_id = text[id_start:position].strip()
        if tag == _ARGS:
            position = skip_space(text, position + len(_ARGS))
        return self._arguments(start, position, name, call_id)

    def _arguments(self, start: int, body: int, name: str, call_id: str | None) -> int:
        text = self.found.text
        if not text.startswith("{", body):
            end = self.finder.next(_MARKER, body)
            return self._without_arguments(start, end, name, is_named=True)
        span, is_balanced = balanced(text, body)
        if not is_balanced:
            end = self.finder.next(_MARKER, body)
            return reject_open(self.found, start, end, span=span, is_cut=True, name=name)
        own_id = call_id if call_id and _ID.fullmatch(call_id) else None
        raw = text[body : span.end]
        add_arguments(self.found, start, span.end, name=name, raw=raw, call_id=own_id)
        return span.end

    def _without_arguments(self, start: int, end: int, name: str, *, is_named: bool = False) -> int:
        """Record a marker with no arguments behind it; return where to go on."""
        if end == len(self.found.text) and is_name(name):
            reason = "the call is cut off"
            known = name if is_named else None
            self.found.reject(start, end, code="truncated", reason=reason, name=known)
            return end
        known = name if is_named else None
        reason = "no arguments follow: write the tool name, then a JSON object"
        prose = not is_named
        self.found.reject(start, end, code="arguments", reason=reason, name=known, is_prose=prose)
        return end
