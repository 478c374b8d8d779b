"""Calls written as JSON objects behind a start marker; shared by Hermes, LongCat, Granite, Mistral.

Behind a marker stand one or more objects ``{"name": ..., "arguments": {...}}``, or one array of
them. ``parameters`` is accepted for ``arguments``; neither = no arguments. The end marker may be
missing: a closed object is complete.
"""

from __future__ import annotations

from typing import Any

from hermes_rl.parsers.json_value import (
    BadJSON,
    Extent,
    decode,
    decode_arguments,
    encode,
    extent,
    read_name,
)
from hermes_rl.parsers.scan import Finder, Piece, Scan, is_cut_tag, skip_space

__all__ = ["MarkedJSON", "add_object"]


def add_object(scan: Scan, start: int, end: int, value: Any) -> bool:
    """Record the call object ``value`` that covers ``start`` to ``end``; False if it is bad."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name.strip():
        reason = 'a call needs "name": the name of the tool, as a string'
        scan.reject(start, end, code="name", reason=reason)
        return False
    arguments = value.get("arguments")
    if arguments is None:
        arguments = value.get("parameters")
    try:
        text = decode_arguments(arguments)
    except BadJSON as error:
        reason = (
            str(error) if error.code == "arguments" else f"arguments are not valid JSON: {error}"
        )
        scan.reject(start, end, code=error.code, reason=reason, name=name)
        return False
    scan.add_call(start, end, name=_encodable(name), arguments=text)
    return True


def _encodable(name: str) -> str:
    return str(decode(encode(name)))


class MarkedJSON:
    """Scans one text for start markers with JSON behind them.

    Args:
        text: The text.
        opens: Start markers.
        close: End marker, None if the format has none.
        was_cut: Whether the text is known to end at a length limit.
    """

    def __init__(
        self, text: str, opens: tuple[str, ...], close: str | None, *, was_cut: bool = False
    ) -> None:
        self.found = Scan(text)
        self.finder = Finder(text)
        self._text = text
        self._opens = opens
        self._close = close
        self._is_cut = was_cut or close is None or not text.rstrip().endswith(close)

    def run(self) -> Scan:
        """Scan the whole text."""
        position = 0
        while position < len(self._text):
            start, marker = self.finder.first(self._opens, position)
            if not marker:
                break
            self.found.markers += 1
            position = self.read_body(start, start + len(marker))
        return self.found

    def read_body(self, start: int, after: int) -> int:
        """Read what stands behind the marker at ``start`` to ``after``; return where to go on."""
        body = skip_space(self._text, after)
        if body == len(self._text):
            reason = "the text ends before the call"
            self.found.reject(start, body, code="truncated", reason=reason)
            return body
        return self.read_values(start, body) if self._text[body] in "{[" else after

    def read_values(self, start: int, body: int) -> int:
        """Read JSON values from ``body`` on; return where to go on.

        The first piece begins at ``start``, so that it covers the marker.
        """
        text = self._text
        while True:
            span = extent(text, body)
            after = skip_space(text, span.end)
            if not span.is_closed or text[after : after + 1] in ("}", "]"):
                return self.reject_open(start, body, span)
            self._add_value(start, body, span)
            start = span.end
            if text[after : after + 1] not in ("{", "["):
                return self._skip_close(span.end, after)
            body = after

    def reject_open(self, start: int, body: int, span: Extent) -> int:
        """Record a value that never closes, or closes once too often; return where to go on."""
        text, name = self._text, read_name(self._text, body)
        if span.end == len(text) and not span.is_closed and self._is_cut:
            reason = "the call is cut off"
            self.found.reject(start, len(text), code="truncated", reason=reason, name=name)
            return len(text)
        end = self._invalid_end(body, span.end)
        where = f"at character {span.end - start} of the call"
        if span.is_closed:
            reason = f"not valid JSON: one closing bracket too many {where}"
        elif span.end == len(text):
            reason = "not valid JSON: a string or a bracket is not closed"
        else:
            reason = f"not valid JSON: unexpected {text[span.end]!r} {where}"
        self.found.reject(start, end, code="json", reason=reason, name=name)
        return end

    def _invalid_end(self, body: int, failed: int) -> int:
        """Return the end of a malformed call: its end marker, or the next start marker."""
        next_start, _ = self.finder.first(self._opens, body)
        if self._close is None:
            return next_start
        close = self.finder.next(self._close, failed if failed <= next_start else body)
        return close + len(self._close) if close < next_start else next_start

    def _add_value(self, start: int, body: int, span: Extent) -> None:
        raw = self._text[body : span.end]
        try:
            value = decode(raw, depth=span.depth)
        except BadJSON as error:
            name = read_name(self._text, body)
            reason = f"not valid JSON: {error}"
            self.found.reject(start, span.end, code=error.code, reason=reason, name=name)
            return
        if isinstance(value, list):
            self._add_array(start, span.end, value)
        else:
            add_object(self.found, start, span.end, value)

    def _add_array(self, start: int, end: int, values: list[Any]) -> None:
        if not all(isinstance(value, dict) for value in values):
            reason = "the array holds something that is not a call object"
            self.found.reject(start, end, code="malformed", reason=reason)
            return
        inner = Scan(self._text)
        for value in values:
            add_object(inner, start, start, value)
        self.found.calls += inner.calls
        self.found.invalid += inner.invalid
        if values:
            self.found.pieces.append(Piece(start, end, "call" if inner.calls else "invalid"))

    def _skip_close(self, start: int, position: int) -> int:
        """Record the end marker at ``position``, if it is there; return where to go on."""
        if self._close is None:
            return start
        if self._text.startswith(self._close, position):
            end = position + len(self._close)
        elif position < len(self._text) and is_cut_tag(self._text, position, self._close):
            end = len(self._text)
        else:
            return start
        self.found.add_markup(start, end)
        return end
