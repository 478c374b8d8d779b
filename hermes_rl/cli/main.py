"""The entry point of ``python -m hermes_rl`` and of the script ``hermes_rl``.

Little is imported here before Ctrl-C is provided for.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from hermes_rl.cli.importing import importing
from hermes_rl.cli.standard_streams import occupy_standard_streams

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises but for ``SystemExit``."""
    words = list(sys.argv[1:] if argv is None else argv)
    occupy_standard_streams()
    with importing():
        from hermes_rl.cli.commands import dispatch
        from hermes_rl.cli.exit_codes import exit_code_after
    return exit_code_after(lambda: dispatch(words))
