"""File name patterns: ``*`` and ``?`` within a name, ``**`` across directories, ``{a,b}``."""

from __future__ import annotations

import re

__all__ = ["MAX_ALTERNATIVES", "expand_braces", "glob_to_regex"]

MAX_ALTERNATIVES = 100
"""Of an expanded brace glob."""


def glob_to_regex(glob: str) -> re.Pattern[str]:
    """Return the pattern of a path glob: ``*`` and ``?`` stay within a name, ``**`` does not."""
    out = []
    position = 0
    while position < len(glob):
        for token, regex in (("**/", "(?:.*/)?"), ("**", ".*"), ("*", "[^/]*"), ("?", "[^/]")):
            if glob.startswith(token, position):
                out.append(regex)
                position += len(token)
                break
        else:
            text, position = _glob_piece(glob, position)
            out.append(text)
    return re.compile("".join(out) + r"\Z", re.DOTALL)


def _glob_piece(glob: str, position: int) -> tuple[str, int]:
    end = glob.find("]", position + 2)
    if glob[position] != "[" or end < 0:
        return re.escape(glob[position]), position + 1
    body = glob[position + 1 : end]
    negated = body[0] in "!^"
    inner = re.escape(body[negated:]).replace(r"\-", "-")
    return f"[{'^' if negated else ''}{inner}]", end + 1


def expand_braces(glob: str) -> list[str]:
    """Return the globs that ``{a,b}`` stands for, at most 100; the glob itself without braces."""
    pending, done = [glob], list[str]()
    while pending and len(done) < MAX_ALTERNATIVES:
        text = pending.pop()
        match = re.search(r"\{([^{}]*,[^{}]*)\}", text)
        if match is None:
            done.append(text)
            continue
        before, after = text[: match.start()], text[match.end() :]
        pending += [before + choice + after for choice in reversed(match[1].split(","))]
    return list(dict.fromkeys(done))
