"""``python -m hermes_rl``."""

from __future__ import annotations

import sys

import hermes_rl


def _unhide() -> None:
    """Let the package be imported anew if a folder of its name stands in its place.

    ``python -m`` looks into the working directory first, and an editable install is found after
    plain folders: beside a clone named ``hermes_rl`` that folder would be the package.
    """
    if getattr(hermes_rl, "__file__", None) is not None:
        return
    del sys.path[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == "hermes_rl"]:
        del sys.modules[name]


if __name__ == "__main__":
    _unhide()
    from hermes_rl.cli.main import main

    sys.exit(main())
