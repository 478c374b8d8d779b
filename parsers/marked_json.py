"""Calls written as JSON objects behind a start marker; shared by Hermes, LongCat, Granite, Mistral.

Behind a marker stand one or more objects ``{"name": ..., "arguments": {...}}``, or one array of
them. The end marker may be missing: a closed object is complete.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hermes_rl.parsers.json_calls import add_object, balanced, invalid_end, reject_open
from hermes_rl.parsers.json_value import BadJSON, Extent, decode, read_name
from hermes_rl.parsers.scan import Finder, Piece, Scan, is_cut_tag, skip_space

__all__ = ["MarkedJSON"]


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
        self.opens = opens
        self._text = text
        self._closes = () if close is None else (close,)
        self.is_cut = was_cut or close is None or not text.rstrip().endswith(close)

    def run(self) -> Scan:
        """Scan the whole text."""
        position = 0
        while True:
            start, marker = self.finder.first(self.opens, position)
            if not marker:
                return self.found
            self.found.markers += 1
            position = self.read_body(start, start + len(marker))

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
            span, is_balanced = balanced(text, body)
            if not is_balanced:
                name = read_name(text, body)
                end = invalid_end(self.finder, self.opens, self._closes, body=body, failed=span.end)
                return reject_open(self.found, start, end, span=span, is_cut=self.is_cut, name=name)
            self._add_value(start, body, span)
            after = skip_space(text, span.end)
            if text[after : after + 1] not in ("{", "["):
                return self._skip_close(span.end, after)
            start, body = span.end, after

    def object_id(self, value: Any) -> str | None:
        """Return the id that a call object carries; None in formats that have none."""
        return None

    def _add_value(self, start: int, body: int, span: Extent) -> None:
        try:
            value = decode(self._text[body : span.end], depth=span.depth)
        except BadJSON as error:
            name = read_name(self._text, body)
            reason = f"not valid JSON: {error}"
            self.found.reject(start, span.end, code=error.code, reason=reason, name=name)
            return
        if isinstance(value, list):
            self._add_array(start, span.end, value)
        else:
            add_object(self.found, start, span.end, value, call_id=self.object_id(value))

    def _add_array(self, start: int, end: int, values: list[Any]) -> None:
        if not all(isinstance(value, dict) for value in values):
            reason = "the array holds something that is not a call object"
            self.found.reject(start, end, code="malformed", reason=reason)
            return
        inner = Scan(self._text)
        for value in values:
            faults = len(inner.invalid)
            add_object(inner, start, start, value, call_id=self.object_id(value))
            if len(inner.invalid) > faults:  # one copy of the array per bad call adds up
                inner.invalid[-1] = replace(inner.invalid[-1], raw=json.dumps(value))
        if inner.invalid and not inner.calls:
            inner.invalid[0] = replace(inner.invalid[0], raw=self._text[start:end])
        self.found.calls += inner.calls
        self.found.invalid += inner.invalid
        if values:
            self.found.pieces.append(Piece(start, end, "call" if inner.calls else "invalid"))

    def _skip_close(self, start: int, position: int) -> int:
        """Record the end marker at ``position``, if it is there; return where to go on."""
        for close in self._closes:
            if self._text.startswith(close, position):
                self.found.add_markup(start, position + len(close))
                return position + len(close)
            if position < len(self._text) and is_cut_tag(self._text, position, close):
                self.found.add_markup(start, len(self._text))
                return len(self._text)
        return start
