"""What an exit code means where a non-zero one is often no failure."""

from __future__ import annotations

import re

__all__ = ["exit_code_meaning"]

_NO_MATCH = "No matches found (not an error)"
_DIFFER = "The files differ (not an error)"
_MEANINGS: dict[str, dict[int, str]] = {
    **{name: {1: _NO_MATCH} for name in ("grep", "egrep", "fgrep", "rg", "ag", "ack")},
    **{name: {1: _DIFFER} for name in ("diff", "colordiff", "cmp")},
    **{name: {1: "The condition is false (not an error)"} for name in ("test", "[")},
    "find": {1: "Some directories could not be read; the results may be incomplete"},
    "git": {1: "Often not an error: differences were found, or there was nothing to do"},
    "curl": {
        6: "The host name could not be resolved",
        7: "The connection was refused or failed",
        22: "The server answered with an HTTP error status (400 or above)",
        28: "The transfer timed out",
    },
}
_SEPARATOR = re.compile(
    r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?P<separator>&&|\|\||[;|\n])""", re.DOTALL
)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def exit_code_meaning(command: str, exit_code: int) -> str | None:
    """Return what ``exit_code`` usually means for the command's last part, None if nothing known.

    The last part is what follows the last unquoted ``;``, ``|``, ``&&``, ``||`` or line end.
    """
    start = 0
    command = command.strip()
    for match in _SEPARATOR.finditer(command):
        if match["separator"]:
            start = match.end()
    words = command[start:].split()
    while words and _ASSIGNMENT.match(words[0]):
        words.pop(0)
    if not words:
        return None
    return _MEANINGS.get(words[0].rpartition("/")[2], {}).get(exit_code)
