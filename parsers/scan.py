"""What a format's scanner finds in a text, and two ways to look at text in linear time.

Model output is hostile by accident: one tag repeated up to the token limit is a normal sample.
Three habits keep every scanner linear: a marker is looked up through :class:`Finder`, which never
searches the same stretch twice; regular expressions are anchored and possessive; nothing copies
"the rest of the text".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from hermes_rl.types import InvalidCall

__all__ = ["Finder", "FoundCall", "Piece", "Scan", "is_cut_tag", "is_name", "skip_space"]

_SPACE = re.compile(r"\s*+")
_NAME = re.compile(r"""[^\s<>{}()\[\]"'`,;=]++""")
_CONTENT_CODES = frozenset({"json", "arguments", "name", "id"})


def skip_space(text: str, position: int) -> int:
    """Return the first position at or after ``position`` that holds no white space."""
    match = _SPACE.match(text, position)
    return match.end() if match else position


def is_cut_tag(text: str, position: int, *tags: str) -> bool:
    """Whether the text from ``position`` to its end is an unfinished (or empty) one of ``tags``."""
    size = len(text) - position
    return any(size < len(tag) and tag.startswith(text[position:]) for tag in tags)


def is_name(text: str) -> bool:
    """Whether ``text`` can be a tool's name: one word without brackets or quotes.

    No list of tools is asked: an unknown name is the environment's business.
    """
    return _NAME.fullmatch(text) is not None


class Finder:
    """Looks for markers, remembering per marker where it last looked and what it found.

    Asking for a marker again and again from growing positions costs one pass over the text in
    all, also for a marker that never occurs.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._seen: dict[str, tuple[int, int]] = {}

    def next(self, marker: str, start: int) -> int:
        """Return where ``marker`` next occurs at or after ``start``; the text's length if never."""
        asked, found = self._seen.get(marker, (0, -1))
        if asked <= start <= found:
            return found
        hit = self._text.find(marker, start)
        found = len(self._text) if hit < 0 else hit
        self._seen[marker] = (start, found)
        return found

    def first(self, markers: Iterable[str], start: int) -> tuple[int, str]:
        """Return position and text of the nearest of ``markers``; ``(length, "")`` if none.

        Of two that begin at the same place the longer wins.
        """
        best = min((self.next(marker, start), -len(marker), marker) for marker in markers)
        return (best[0], best[2]) if best[0] < len(self._text) else (best[0], "")


@dataclass(slots=True, frozen=True)
class Piece:
    """A stretch of the text that is not prose.

    Attributes:
        start: Where it begins.
        end: One past its end.
        kind: ``call`` (one valid call or several), ``invalid``, or ``markup`` around them.
    """

    start: int
    end: int
    kind: Literal["call", "invalid", "markup"]


@dataclass(slots=True, frozen=True)
class FoundCall:
    """A valid call as found.

    Attributes:
        name: As the model wrote it.
        arguments: JSON text of an object.
        id: The id in the text, None if the format has none.
    """

    name: str
    arguments: str
    id: str | None = None


@dataclass(slots=True)
class Scan:
    """Everything found in one text, in order.

    Attributes:
        text: The text that was scanned.
        pieces: Stretches that are not prose, ascending, never overlapping.
        calls: Valid calls.
        invalid: Malformed calls.
        markers: How many call markers were seen.
        reasoning: Reasoning that the format itself marks, beside any reasoning block.
    """

    text: str
    pieces: list[Piece] = field(default_factory=list)
    calls: list[FoundCall] = field(default_factory=list)
    invalid: list[InvalidCall] = field(default_factory=list)
    markers: int = 0
    reasoning: str | None = None

    def add_call(
        self, start: int, end: int, *, name: str, arguments: str, call_id: str | None = None
    ) -> None:
        """Record a valid call that covers ``start`` to ``end``."""
        self.calls.append(FoundCall(name, arguments, call_id))
        self.pieces.append(Piece(start, end, "call"))

    def add_markup(self, start: int, end: int) -> None:
        """Record tags and white space that belong to calls."""
        if start < end:
            self.pieces.append(Piece(start, end, "markup"))

    def reject(
        self,
        start: int,
        end: int,
        *,
        code: str,
        reason: str,
        name: str | None = None,
        is_prose: bool = False,
    ) -> None:
        """Record a malformed call that covers ``start`` to ``end``.

        Args:
            start: Where it begins.
            end: One past its end.
            code: One stable word, see :class:`~hermes_rl.types.InvalidCall`.
            reason: One sentence for the model.
            name: Tool name, if it could be read.
            is_prose: Whether the stretch reads like prose and stays in the content.
        """
        kind: Literal["structure", "content"] = "content" if code in _CONTENT_CODES else "structure"
        raw = self.text[start:end]
        self.invalid.append(InvalidCall(reason, raw, name, kind, start, code))
        if not is_prose:
            self.pieces.append(Piece(start, end, "invalid"))

    def prose(self) -> tuple[str, str]:
        """Return the text before the first valid call and the text between and after the calls."""
        first = next((piece.start for piece in self.pieces if piece.kind == "call"), len(self.text))
        before = [self.text[start:end] for start, end in self._gaps() if start < first]
        after = [self.text[start:end].strip() for start, end in self._gaps() if start >= first]
        return "".join(before).strip(), "\n".join(filter(None, after))

    def _gaps(self) -> Iterator[tuple[int, int]]:
        position = 0
        for piece in self.pieces:
            if position < piece.start:
                yield position, piece.start
            position = piece.end
        if position < len(self.text):
            yield position, len(self.text)
