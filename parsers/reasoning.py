"""Splits a model's reasoning from its answer, before tool calls are looked for.

The rules: a closed block is reasoning, and calls drafted inside it are not calls, except when
the block ends with calls and nothing follows it: then those are the calls. A block that never
closes ends at the first complete call, or else is reasoning to the end. A closing tag without
an opening one closes a block that the prompt opened. A closing tag inside a call's arguments is
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_rl.parsers.scan import Finder, Piece, skip_space

__all__ = ["THINK", "ReasoningSplit", "ReasoningTags", "split_reasoning"]


@dataclass(slots=True, frozen=True)
class ReasoningTags:
    """The pair of tags around a reasoning block."""

    open: str
    close: str


THINK = ReasoningTags("<think>", "</think>")
"""What most families use."""


@dataclass(slots=True, frozen=True)
class ReasoningSplit:
    """A text in three parts; the tags themselves are in none of them.

    Attributes:
        before: Text in front of the block, "" if the block comes first.
        reasoning: The block, stripped; None if there is none or it is empty.
        rest: What follows and may hold calls.
        rest_start: Offset of ``rest`` in the text.
        is_open: Whether the block never closed.
    """

    before: str
    reasoning: str | None
    rest: str
    rest_start: int = 0
    is_open: bool = False


def split_reasoning(
    text: str,
    tags: Sequence[ReasoningTags] = (THINK,),
    *,
    reasoning_open: bool | None = None,
    pieces: Sequence[Piece] = (),
    markers: Sequence[str] = (),
) -> ReasoningSplit:
    """Split ``text``.

    Args:
        text: A whole completion.
        tags: The family's tags; the pair whose block comes first counts.
        reasoning_open: Whether the prompt ended inside an open block; None = not known, then a
            lone closing tag counts as the end of one.
        pieces: What a call scanner found in ``text``; needed wherever calls can occur.
        markers: Call markers of a format whose arguments are not quoted. There a draft that was
            never finished can seem to swallow the closing tag and a later call with it: a
            closing tag with a marker behind it in the same call closes the block.
    """
    view = _View(text, pieces, markers)
    leading = skip_space(text, 0)
    pair = next((pair for pair in tags if text.startswith(pair.open, leading)), None)
    if pair is not None:
        return view.split(pair, leading + len(pair.open), view.closing(pair, leading))
    if reasoning_open is False:
        return ReasoningSplit("", None, text)
    closings = [(view.closing(candidate, 0), candidate) for candidate in tags]
    close, pair = min(closings, key=lambda item: item[0])
    if close == len(text):
        return view.split(pair, 0, close) if reasoning_open else ReasoningSplit("", None, text)
    opening = view.opening(pair, close) if reasoning_open is None else None
    if opening is None:
        return view.split(pair, 0, close)
    return view.split(pair, opening + len(pair.open), close, before=text[:opening])


class _View:
    """One text with the calls that were found in it."""

    def __init__(self, text: str, pieces: Sequence[Piece], markers: Sequence[str]) -> None:
        self._text = text
        self._pieces = pieces
        self._calls = [piece for piece in pieces if piece.kind == "call"]
        self._markers = markers
        self._finder = Finder(text)

    def closing(self, pair: ReasoningTags, start: int) -> int:
        """Return where the block closes; the text's length if it does not."""
        close = self._finder.next(pair.close, start)
        for call in self._calls:
            while call.start <= close < call.end:
                if self._markers and self._finder.first(self._markers, close)[0] < call.end:
                    return close
                close = self._finder.next(pair.close, close + 1)
        return close

    def opening(self, pair: ReasoningTags, close: int) -> int | None:
        """Return where a block that closes at ``close`` opens, if text comes before it."""
        first_call = self._calls[0].start if self._calls else close
        opening = self._finder.next(pair.open, 0)
        return opening if opening < min(close, first_call) else None

    def split(
        self, pair: ReasoningTags, start: int, close: int, before: str = ""
    ) -> ReasoningSplit:
        """Cut at a block from ``start`` to ``close``, or at the call that ends it."""
        text = self._text
        is_open = close == len(text)
        after = min(close + len(pair.close), len(text))
        if is_open:
            rest = self._first_call(start)
        else:
            rest = self._closing_calls(start, close) if not text[after:].strip() else None
        if rest is None:
            block, rest = text[start:close], after
            return ReasoningSplit(before, block.strip() or None, text[after:], rest, is_open)
        return ReasoningSplit(before, text[start:rest].strip() or None, text[rest:close], rest)

    def _first_call(self, start: int) -> int | None:
        """Return where the first call begins, markup directly in front of it included."""
        calls = (n for n, piece in enumerate(self._pieces) if piece.kind == "call")
        index = next((n for n in calls if self._pieces[n].start >= start), None)
        return None if index is None else self._run_start(index, start, ("markup",))

    def _closing_calls(self, start: int, close: int) -> int | None:
        """Return where the calls begin that the block ends with, None if it ends otherwise."""
        inside = [n for n, piece in enumerate(self._pieces) if piece.end <= close]
        if not inside or self._text[self._pieces[inside[-1]].end : close].strip():
            return None
        begin = self._run_start(inside[-1], start, ("markup", "call"))
        is_call = any(call.start >= begin and call.end <= close for call in self._calls)
        return begin if is_call else None

    def _run_start(self, index: int, start: int, kinds: Sequence[str]) -> int:
        """Return the start of the unbroken run of pieces that ends with piece ``index``."""
        pieces = self._pieces
        while (
            index > 0
            and pieces[index - 1].kind in kinds
            and pieces[index - 1].start >= start
            and not self._text[pieces[index - 1].end : pieces[index].start].strip()
        ):
            index -= 1
        return pieces[index].start
