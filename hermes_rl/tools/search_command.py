"""The shell commands behind ``search_files``: POSIX find, sort and grep, GNU or BusyBox.

Each starts in the directory that is searched, so that everything it prints is relative to it
(``./...``), and ends with an exit code of ours where the search cannot be made.
"""

from __future__ import annotations

import shlex

from hermes_rl.tools.globs import expand_braces
from hermes_rl.tools.search_pattern import PosixPattern

__all__ = [
    "BAD_PATTERN",
    "MISSING_PROGRAM",
    "NOT_A_DIRECTORY",
    "NOT_FOUND",
    "content_command",
    "files_command",
]

BAD_PATTERN = 65
"""Exit code: grep refuses the pattern; its message is on standard error."""
NOT_FOUND = 66
"""Exit code: the path does not exist or may not be entered."""
NOT_A_DIRECTORY = 67
"""Exit code: files were searched for below something that is no directory."""
MISSING_PROGRAM = 69
"""Exit code: find, grep or another program is not there; named on standard error."""
MAX_ROW_BYTES = 6_400
"""Of one row, path included; longer lines are cut in the sandbox."""

_PROGRAMS = (
    'for p in find sort {}; do command -v $p >/dev/null || {{ echo "$p" >&2; exit 69; }}; done'
)
_HIDDEN = "-name '.?*' -prune -o"


def content_command(
    root: str, pattern: PosixPattern, *, glob: str, counts: bool, context: int
) -> str:
    """Search the contents of ``root`` (absolute: a directory or one file).

    Prints ``PATH NUL LINE:TEXT`` (GNU) or ``PATH:LINE:TEXT`` rows, with ``-`` for ``:`` in context
    lines; with ``counts`` ``PATH:COUNT`` rows of the files that match.
    """
    fold = " -i" if pattern.ignore_case else ""
    search = f"grep -E{fold} -e {shlex.quote(pattern.text)}"
    show = "-cHs $b" if counts else f"-nHs $b $z{f' -C {context}' if context else ''}"
    after = "grep -v ':0$'" if counts else f"cut -b1-{MAX_ROW_BYTES}"
    return "\n".join(
        [
            "export LC_ALL=C",
            f"r={shlex.quote(root)}",
            _PROGRAMS.format("grep xargs cut"),
            f'[ -e "$r" ] || exit {NOT_FOUND}',
            f"echo | {search} >/dev/null; [ $? -le 1 ] || exit {BAD_PATTERN}",
            "b= z=; case $(grep --version 2>/dev/null) in *GNU*) b=-I z=-Z;; esac",
            'if [ -d "$r" ]; then',
            f'cd -- "$r" || exit {NOT_FOUND}',
            f"find . {_selection(glob)} -print0 2>/dev/null | sort -z "
            f"| xargs -0 {search} {show} -- | {after}",
            f'else {search} {show} -- "$r" </dev/null | {after}; fi; exit 0',
        ]
    )


def files_command(root: str, glob: str) -> str:
    """Find files below the directory ``root``: prints ``SECONDS PATH`` rows, newest first."""
    return "\n".join(
        [
            "export LC_ALL=C",
            f"r={shlex.quote(root)}",
            _PROGRAMS.format("stat"),
            f'[ -e "$r" ] || exit {NOT_FOUND}',
            f'[ -d "$r" ] || exit {NOT_A_DIRECTORY}',
            f'cd -- "$r" || exit {NOT_FOUND}',
            f"find . {_selection(glob)} -exec stat -c '%Y %n' {{}} + 2>/dev/null "
            "| sort -k1,1nr -k2; exit 0",
        ]
    )


def _selection(glob: str) -> str:
    """Return find's tests for regular files that ``glob`` may fit ("" = any)."""
    wants_hidden = glob.startswith(".") or "/." in glob
    hidden = "" if wants_hidden else _HIDDEN
    tests = [_test(each) for each in expand_braces(glob)] if glob else []
    named = f"\\( {' -o '.join(tests)} \\)" if tests else ""
    return f"{hidden} -type f {named}"


def _test(glob: str) -> str:
    if "/" not in glob:
        return f"-name {shlex.quote(glob)}"
    # find's * crosses directories, so this lets through too much; rows are looked at again.
    loose = glob.removeprefix("./").replace("**/", "*").replace("**", "*")
    return f"-path {shlex.quote('./' + loose)}"
