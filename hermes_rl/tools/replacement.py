"""Replacing a passage by another one, as ``patch`` in mode ``replace`` does.

What was found inexactly is replaced in the file's own manner: the new text is moved to the
passage's indentation, takes over its line ends, keeps typographic characters that did not change,
and loses backslash escapes that were not meant.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from hermes_rl.tools.matching import Found, find_text, similarity, unescape

__all__ = ["Replacement", "closest_passages", "in_manner_of", "replace_text"]

MAX_ALIGNED_CHARS = 5_000
"""Longer passages are not aligned character by character."""
MAX_SUGGESTION_LINES = 5_000
"""Of a file searched for a similar passage."""
_INDENT = re.compile(r"[ \t]*")


@dataclass(slots=True, frozen=True)
class Replacement:
    """The new ``text``, or why there is none (``error``).

    Attributes:
        text: The whole file after the replacement.
        error: What to tell the model.
        strategy: How the passage was found.
        not_found: The error is that nothing was found.
    """

    text: str = ""
    error: str | None = None
    strategy: str = ""
    not_found: bool = False


def replace_text(text: str, old: str, new: str, *, replace_all: bool) -> Replacement:
    """Replace ``old`` by ``new`` in ``text``: the only occurrence, or all of them."""
    if not old:
        return Replacement(error="old_string cannot be empty")
    if old == new:
        return Replacement(error="old_string and new_string are identical")
    found = find_text(text, old)
    if found is None:
        error = "Could not find a match for old_string in the file" + closest_passages(text, old)
        return Replacement(error=error, not_found=True)
    if len(found.spans) > 1 and not replace_all:
        return Replacement(
            error=f"Found {len(found.spans)} matches for old_string. Provide more context to make "
            "it unique, or use replace_all=True."
        )
    if len(found.spans) > 1 and found.strategy in ("block_anchor", "context_aware"):
        return Replacement(
            error=f"Found {len(found.spans)} passages that are only similar to old_string. Quote "
            "the text exactly to replace all of them."
        )
    drift = _escape_drift(text, found, old, new)
    if drift:
        return Replacement(error=drift)
    pieces, position = [], 0
    for start, end in found.spans:
        pieces += [text[position:start], _fitted(text, start, end, old, new, found.strategy)]
        position = end
    pieces.append(text[position:])
    return Replacement("".join(pieces), strategy=found.strategy)


def _escape_drift(text: str, found: Found, old: str, new: str) -> str | None:
    """Say if old and new have a backslash-quote where the file has only the quote."""
    if found.strategy in ("exact", "escape_normalized"):
        return None
    region = text[slice(*found.spans[0])]
    for escaped in ("\\'", '\\"'):
        if escaped in old and escaped in new and escaped not in region:
            return (
                f"old_string and new_string contain {escaped} but the file has {escaped[1]} there "
                "without a backslash. Send both without the extra backslashes."
            )
    return None


def _fitted(text: str, start: int, end: int, old: str, new: str, strategy: str) -> str:
    """Return ``new`` in the manner of the passage that it replaces."""
    region = text[start:end]
    if strategy == "exact":
        return new
    if strategy == "escape_normalized":
        return unescape(new)
    if strategy == "unicode_normalized":
        return _keep_characters(region, old, new)
    if strategy == "trimmed_boundary":
        return _trim_alike(old, new)
    if strategy == "whitespace_normalized":
        old, new = old.strip(), _trim_alike(old, new)
        before = text[text.rfind("\n", 0, start) + 1 : start]
        if before.strip():
            return _with_real_tabs(region, new)
        region = before + region
        old, new = before + old, before + new
        return in_manner_of(region, old, new)[len(before) :]
    if old.endswith("\n") and not region.endswith("\n"):
        new = new.removesuffix("\n")
    return in_manner_of(region, old, new, next_char=text[end : end + 1])


def in_manner_of(region: str, old: str, new: str, *, next_char: str = "") -> str:
    """Return ``new`` with the indentation and line ends that ``region`` has in place of ``old``."""
    fitted = _with_real_tabs(region, _reindented(region.split("\n"), old.split("\n"), new))
    if "\r\n" in region or (next_char == "\r" and "\n" in fitted):
        fitted = fitted.replace("\r\n", "\n").replace("\n", "\r\n")
    return fitted


def _indent(line: str) -> str:
    match = _INDENT.match(line)
    return match[0] if match else ""


def _reindented(region: Sequence[str], old: Sequence[str], new: str) -> str:
    """Move ``new`` by what lies between the indentations of ``old`` and ``region``."""
    old_base = next((_indent(line) for line in old if line.strip()), "")
    base = next((_indent(line) for line in region if line.strip()), "")
    known: dict[str, str] = {}
    if len(region) == len(old):
        for theirs, ours in zip(old, region, strict=True):
            if theirs.strip() and ours.strip():
                known.setdefault(_indent(theirs), _indent(ours))
    if all(theirs == ours for theirs, ours in known.items()) and old_base == base:
        return new
    return "\n".join(_moved(line, known, old_base, base) for line in new.split("\n"))


def _moved(line: str, known: dict[str, str], old_base: str, base: str) -> str:
    if not line.strip():
        return line
    indent = _indent(line)
    rest = line[len(indent) :]
    if indent in known:
        return known[indent] + rest
    nearest = max((each for each in known if indent.startswith(each)), key=len, default=None)
    if nearest is not None:
        return known[nearest] + indent[len(nearest) :] + rest
    if indent.startswith(old_base):
        return base + indent[len(old_base) :] + rest
    return base[: max(0, len(base) - (len(old_base) - len(indent)))] + rest


def _with_real_tabs(region: str, new: str) -> str:
    r"""Decode a written-out ``\t`` or ``\r`` where the passage has the real character only."""
    for written, real in (("\\t", "\t"), ("\\r", "\r")):
        if written in new and real in region and written not in region:
            new = new.replace(written, real)
    return new


def _trim_alike(old: str, new: str) -> str:
    """Remove from ``new`` the blanks that ``old`` has at its ends, where it has them too."""
    leading = old[: len(old) - len(old.lstrip())]
    trailing = old[len(old.rstrip()) :]
    return new.removeprefix(leading).removesuffix(trailing)


def _keep_characters(region: str, old: str, new: str) -> str:
    """Return ``new`` with what did not change taken from ``region`` as it is there."""
    if len(region) != len(old) or max(len(old), len(new)) > MAX_ALIGNED_CHARS:
        return new
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    return "".join(
        region[i1:i2] if tag == "equal" else new[j1:j2]
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
    )


def closest_passages(text: str, wanted: str) -> str:
    """Return up to three passages like ``wanted`` with line numbers, "" if there is none."""
    targets = [line.strip() for line in wanted.split("\n") if line.strip()]
    if not targets:
        return ""
    lines = text.split("\n")[:MAX_SUGGESTION_LINES]
    anchor = targets[0]
    scored = [(similarity(line.strip(), anchor, 0.5), -number) for number, line in enumerate(lines)]
    best = sorted((pair for pair in scored if pair[0] > 0), reverse=True)[:3]
    if not best:
        return ""
    height = min(len(wanted.split("\n")) + 2, 12)
    snippets = []
    for _, negative in sorted(best, key=lambda pair: -pair[1]):
        first = max(0, -negative - 1)
        shown = enumerate(lines[first : first + height], first + 1)
        snippets.append("\n".join(f"{number:4d}| {line[:200]}" for number, line in shown))
    return "\n\nDid you mean one of these sections?\n" + "\n---\n".join(snippets)
