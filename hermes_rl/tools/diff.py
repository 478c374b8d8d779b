"""Unified diffs of files before and after an edit."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

__all__ = ["unified_diff"]

CONTEXT_LINES = 3
MAX_ALIGNED_LINES = 2_000
"""Changed regions with more lines on a side are shown as one block: aligning them is quadratic."""
MAX_DIFF_CHARS = 30_000
"""Of one diff; a longer one is cut with a note."""
_NO_NEWLINE = "\\ No newline at end of file"

Change = tuple[int, int, int, int]
"""Lines ``[0]:[1]`` of the old text became lines ``[2]:[3]`` of the new one."""


def unified_diff(
    before: str | None, after: str | None, old_path: str, new_path: str | None = None
) -> str:
    """Return the unified diff of two texts; None = the file does not exist on that side."""
    old, new = _lines(before), _lines(after)
    new_path = old_path if new_path is None else new_path
    out = [
        "--- /dev/null" if before is None else f"--- a/{old_path.lstrip('/')}",
        "+++ /dev/null" if after is None else f"+++ b/{new_path.lstrip('/')}",
    ]
    for hunk in _hunks(_changes(old, new)):
        out += _rendered(hunk, old, new)
    text = "\n".join(out) + "\n"
    if len(text) > MAX_DIFF_CHARS:
        text = text[:MAX_DIFF_CHARS] + f"\n... [diff cut: {len(text):,} characters in all]\n"
    return text


def _lines(text: str | None) -> list[str]:
    r"""Split at ``\n`` only; lines keep it, so that a missing last one counts as a difference."""
    lines = [line + "\n" for line in (text or "").split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _changes(old: Sequence[str], new: Sequence[str]) -> list[Change]:
    start = 0
    shorter = min(len(old), len(new))
    while start < shorter and old[start] == new[start]:
        start += 1
    tail = 0
    while tail < shorter - start and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    old_end, new_end = len(old) - tail, len(new) - tail
    if max(old_end, new_end) - start > MAX_ALIGNED_LINES:
        return [(start, old_end, start, new_end)]
    matcher = SequenceMatcher(None, old[start:old_end], new[start:new_end], autojunk=False)
    return [
        (start + i1, start + i2, start + j1, start + j2)
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]


def _hunks(changes: Sequence[Change]) -> list[list[Change]]:
    """Group changes whose context lines would touch."""
    hunks: list[list[Change]] = []
    for change in changes:
        if hunks and change[0] - hunks[-1][-1][1] <= 2 * CONTEXT_LINES:
            hunks[-1].append(change)
        else:
            hunks.append([change])
    return hunks


def _rendered(hunk: Sequence[Change], old: Sequence[str], new: Sequence[str]) -> list[str]:
    lead = min(CONTEXT_LINES, hunk[0][0])
    trail = min(CONTEXT_LINES, len(old) - hunk[-1][1])
    old_range = _range(hunk[0][0] - lead, hunk[-1][1] + trail)
    new_range = _range(hunk[0][2] - lead, hunk[-1][3] + trail)
    out = [f"@@ -{old_range} +{new_range} @@"]
    position = hunk[0][0] - lead
    for old_start, old_end, new_start, new_end in hunk:
        out += _marked(" ", old[position:old_start])
        out += _marked("-", old[old_start:old_end])
        out += _marked("+", new[new_start:new_end])
        position = old_end
    return out + _marked(" ", old[position : position + trail])


def _marked(sign: str, lines: Sequence[str]) -> list[str]:
    out = []
    for line in lines:
        out.append(sign + line.removesuffix("\n"))
        if not line.endswith("\n"):
            out.append(_NO_NEWLINE)
    return out


def _range(start: int, end: int) -> str:
    length = end - start
    first = start + 1 if length else start
    return str(first) if length == 1 else f"{first},{length}"
