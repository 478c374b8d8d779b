r"""Finding a passage in a file although the model did not quote it exactly.

Two searches share their strategies; in both the first strategy that finds anything decides.

:func:`find_text` looks for a text anywhere, also inside a line:

1. ``exact``
2. ``indentation_flexible``   whole lines, same relative indentation
3. ``line_trimmed``           whole lines, blanks at both ends of each ignored
4. ``whitespace_normalized``  any run of blanks matches any other; a line end matches a line end
5. ``escape_normalized``      ``\n``, ``\t``, ``\"`` ... written out in the text are decoded
6. ``trimmed_boundary``       blanks around the whole text ignored
7. ``unicode_normalized``     typographic quotes, dashes, spaces and dots match plain ones
8. ``block_anchor``           first and last line fit and what is between is alike
9. ``context_aware``          most lines are nearly the same

:func:`find_lines` looks for whole lines with 2, 3, 4, 7, 8 and 9 after an exact comparison.

All are linear in the file in 1 to 7; 8 and 9 compare at most :data:`MAX_COMPARISONS` pairs of
lines. It is pure Python: callers run it in a worker thread.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

__all__ = ["Found", "find_lines", "find_text", "fold_punctuation", "similarity", "unescape"]

MAX_COMPARISONS = 200_000
"""Pairs of lines that a similarity search may compare; a bigger search is not made."""
MAX_COMPARED_CHARS = 2_000
"""Longer lines are only compared for equality."""
MAX_PATTERN_TOKENS = 4_000
"""A longer text is not turned into a regular expression."""
MAX_PATTERN_TEXT_CHARS = 300_000
"""A pattern that begins with a set of characters costs some 30 ns per character of the file, and
holds the interpreter for that time; a longer file is not searched with one."""
ANCHOR_SIMILARITY = 0.50
"""Of the lines between the anchors, if only one block has them."""
ANCHOR_SIMILARITY_SEVERAL = 0.70
"""The same if several blocks have them."""
LINE_SIMILARITY = 0.80
"""From here on two lines count as nearly the same."""
WINDOW_SHARE = 0.50
"""More nearly equal lines than this share make a window match."""


@dataclass(slots=True, frozen=True)
class Found:
    """Where something was found: half-open ranges of characters or lines, and by which strategy."""

    strategy: str
    spans: tuple[tuple[int, int], ...]


_PUNCTUATION = {
    "'": "\u2018\u2019\u201a\u201b\u2032",
    '"': "\u201c\u201d\u201e\u201f\u2033",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212",
    " ": "\u00a0\u2002\u2003\u2007\u2008\u2009\u200a\u202f\u3000",
}
_FOLD = str.maketrans(
    {odd: plain for plain, odds in _PUNCTUATION.items() for odd in odds} | {"\u2026": "..."}
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "`": "`", "$": "$"}
_ESCAPE = re.compile(r"\\([ntr\\\"'`$])")


def fold_punctuation(text: str) -> str:
    """Return ``text`` with typographic quotes, dashes, spaces and dots made plain."""
    return text if text.isascii() else text.translate(_FOLD)


def unescape(text: str) -> str:
    """Decode backslash escapes that were meant as the characters themselves."""
    return _ESCAPE.sub(lambda match: _ESCAPES[match[1]], text)


def similarity(left: str, right: str, floor: float) -> float:
    """Return how alike two lines are (0-1); 0 for anything below ``floor``."""
    if left == right:
        return 1.0
    if max(len(left), len(right)) > MAX_COMPARED_CHARS:
        return 0.0
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    if matcher.real_quick_ratio() < floor or matcher.quick_ratio() < floor:
        return 0.0
    ratio = matcher.ratio()
    return ratio if ratio >= floor else 0.0


def find_text(text: str, wanted: str) -> Found | None:
    """Find ``wanted`` in ``text``; spans are character ranges. None = not found by any strategy."""
    exact = _occurrences(text, wanted)
    if exact:
        return Found("exact", exact)
    if not wanted.strip():
        return None
    searches: tuple[Callable[[], Found | None], ...] = (
        lambda: _as_characters(text, wanted, _trimmed_lines),
        lambda: _by_pattern(text, "whitespace_normalized", _blank_pattern(wanted)),
        lambda: _literal(text, "escape_normalized", unescape(wanted), wanted),
        lambda: _literal(text, "trimmed_boundary", wanted.strip(), wanted),
        lambda: _plain_punctuation(text, wanted),
        lambda: _as_characters(text, wanted, _anchored_block),
        lambda: _as_characters(text, wanted, _similar_window),
    )
    return next(filter(None, (search() for search in searches)), None)


def find_lines(lines: Sequence[str], wanted: Sequence[str]) -> Found | None:
    """Find consecutive lines; spans are line ranges. None = not found by any strategy."""
    exact = _equal_runs(lines, wanted, lambda line: line.rstrip("\r"))
    if exact:
        return Found("exact", exact)
    if not any(line.strip() for line in wanted):
        return None
    return (
        _trimmed_lines(lines, wanted)
        or _keyed_lines("whitespace_normalized", lines, wanted, lambda line: " ".join(line.split()))
        or _keyed_lines(
            "unicode_normalized", lines, wanted, lambda line: fold_punctuation(line).strip()
        )
        or _anchored_block(lines, wanted)
        or _similar_window(lines, wanted)
    )


def _occurrences(text: str, wanted: str) -> tuple[tuple[int, int], ...]:
    spans = []
    start = text.find(wanted)
    while start >= 0:
        spans.append((start, start + len(wanted)))
        start = text.find(wanted, start + len(wanted))
    return tuple(spans)


def _literal(text: str, strategy: str, variant: str, wanted: str) -> Found | None:
    if not variant or variant == wanted:
        return None
    spans = _occurrences(text, variant)
    return Found(strategy, spans) if spans else None


def _by_pattern(text: str, strategy: str, pattern: str | None) -> Found | None:
    if not pattern:
        return None
    spans = tuple(match.span() for match in re.finditer(pattern, text))
    return Found(strategy, spans) if spans else None


def _blank_pattern(wanted: str) -> str | None:
    """Return a pattern for ``wanted`` with any blanks; None if it has none or is too long."""
    pieces = re.split(r"(\s+)", wanted.strip())
    if not 1 < len(pieces) <= MAX_PATTERN_TOKENS:
        return None
    blanks = {False: r"[^\S\n]+", True: r"[^\S\n]*\n\s*"}
    return "".join(
        blanks["\n" in piece] if index % 2 else re.escape(piece)
        for index, piece in enumerate(pieces)
    )


def _punctuation_pattern(wanted: str) -> str | None:
    folded = fold_punctuation(wanted)
    if len(folded) > MAX_PATTERN_TOKENS:
        return None
    return "".join(
        "(?:\\.\\.\\.|\u2026)"
        if piece == "..."
        else f"[{re.escape(piece + _PUNCTUATION[piece])}]"
        if piece in _PUNCTUATION
        else re.escape(piece)
        for piece in re.findall(r"\.\.\.|.", folded, re.DOTALL)
    )


def _plain_punctuation(text: str, wanted: str) -> Found | None:
    if text.isascii():
        return _literal(text, "unicode_normalized", fold_punctuation(wanted), wanted)
    if len(text) > MAX_PATTERN_TEXT_CHARS:
        return None
    return _by_pattern(text, "unicode_normalized", _punctuation_pattern(wanted))


def _as_characters(
    text: str, wanted: str, search: Callable[[Sequence[str], Sequence[str]], Found | None]
) -> Found | None:
    """Run a search over lines and return character ranges.

    A final line end of ``wanted`` is part of the range where the file has one there.
    """
    lines = text.split("\n")
    ends_line = wanted.endswith("\n")
    found = search(lines, (wanted[:-1] if ends_line else wanted).split("\n"))
    if found is None:
        return None
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    spans = []
    for first, last in found.spans:
        end = min(starts[last] - (not ends_line), len(text))
        if not ends_line and text[end - 1 : end] == "\r":
            end -= 1
        spans.append((starts[first], end))
    return Found(found.strategy, tuple(spans))


def _equal_runs(
    lines: Sequence[str], wanted: Sequence[str], key: Callable[[str], str]
) -> tuple[tuple[int, int], ...]:
    """Return where consecutive lines have the keys of ``wanted``; ranges do not overlap."""
    haystack = "\n" + "\n".join(map(key, lines)) + "\n"
    needle = "\n" + "\n".join(map(key, wanted)) + "\n"
    spans: list[tuple[int, int]] = []
    line, counted = 0, 0
    position = haystack.find(needle)
    while position >= 0:
        line += haystack.count("\n", counted, position)
        counted = position
        if not spans or line >= spans[-1][1]:
            spans.append((line, line + len(wanted)))
        position = haystack.find(needle, position + 1)
    return tuple(spans)


def _keyed_lines(
    strategy: str, lines: Sequence[str], wanted: Sequence[str], key: Callable[[str], str]
) -> Found | None:
    spans = _equal_runs(lines, wanted, key)
    return Found(strategy, spans) if spans else None


def _trimmed_lines(lines: Sequence[str], wanted: Sequence[str]) -> Found | None:
    spans = _equal_runs(lines, wanted, str.strip)
    if not spans:
        return None
    shape = _dedented(wanted)
    same_shape = tuple(span for span in spans if _dedented(lines[slice(*span)]) == shape)
    if same_shape:
        return Found("indentation_flexible", same_shape)
    return Found("line_trimmed", spans)


def _dedented(lines: Sequence[str]) -> str:
    return textwrap.dedent("\n".join(line.rstrip() for line in lines))


def _anchored_block(lines: Sequence[str], wanted: Sequence[str]) -> Found | None:
    """Find a block that begins and ends like ``wanted`` and is alike between."""
    if len(wanted) < 3 or not wanted[0].strip() or not wanted[-1].strip():
        return None
    stripped = [line.strip() for line in lines]
    middle = [line.strip() for line in wanted[1:-1]]
    blocks = list(_blocks(stripped, wanted[0].strip(), wanted[-1].strip(), len(wanted)))
    if not blocks or len(blocks) * len(middle) > MAX_COMPARISONS:
        return None
    scores = [_alike(stripped[first + 1 : last - 1], middle) for first, last in blocks]
    best = max(scores)
    if best < (ANCHOR_SIMILARITY if len(blocks) == 1 else ANCHOR_SIMILARITY_SEVERAL):
        return None
    spans = tuple(block for block, score in zip(blocks, scores, strict=True) if score == best)
    return Found("block_anchor", spans)


def _blocks(lines: Sequence[str], first: str, last: str, length: int) -> Iterator[tuple[int, int]]:
    """Yield, per line equal to ``first``, the block to a ``last`` nearest to ``length`` lines."""
    slack = max(1, length // 4)
    distances = sorted(range(-slack, slack + 1), key=abs)
    for start, line in enumerate(lines):
        if line != first:
            continue
        for distance in distances:
            end = start + length + distance
            if start + 2 <= end <= len(lines) and lines[end - 1] == last:
                yield start, end
                break


def _alike(left: Sequence[str], right: Sequence[str]) -> float:
    """Return the mean similarity of lines paired in order; a line without partner counts 0."""
    pairs = max(len(left), len(right))
    if pairs == 0:
        return 1.0
    return sum(similarity(a, b, 0.0) for a, b in zip(left, right, strict=False)) / pairs


def _similar_window(lines: Sequence[str], wanted: Sequence[str]) -> Found | None:
    """Find the windows with the most nearly equal lines, more than half of them."""
    count = len(wanted)
    if count < 2 or count > len(lines) or len(lines) * count > MAX_COMPARISONS:
        return None
    stripped = [line.strip() for line in lines]
    targets = [line.strip() for line in wanted]
    known: dict[tuple[str, str], bool] = {}

    def near(left: str, right: str) -> bool:
        pair = (left, right)
        if pair not in known:
            known[pair] = similarity(left, right, LINE_SIMILARITY) > 0
        return known[pair]

    best, spans = 0, []
    for start in range(len(lines) - count + 1):
        score = sum(
            bool(target) and near(line, target)
            for line, target in zip(stripped[start : start + count], targets, strict=True)
        )
        if score > best:
            best, spans = score, [(start, start + count)]
        elif score == best and score and start >= spans[-1][1]:
            spans.append((start, start + count))
    filled = sum(bool(target) for target in targets)
    return Found("context_aware", tuple(spans)) if best > WINDOW_SHARE * filled else None
