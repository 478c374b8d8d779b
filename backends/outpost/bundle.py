"""Starts a program of several modules whose sources come as arguments; stdlib only, >= 3.8.

    bundle.py COUNT NAME SOURCE ... ARGUMENTS

The last of the modules has a ``main`` that takes the arguments and returns the exit code. Each may
import those before it, by their names.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType


def load(name: str, source: str) -> ModuleType:
    """Make a module of its source: the files lie on the engine's machine."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    return module


def main(words: list[str]) -> int:
    """Load the modules and run the last."""
    count = int(words[0])
    for place in range(1, 2 * count, 2):
        module = load(words[place], words[place + 1])
    code: int = module.main(words[2 * count + 1 :])
    return code


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
