"""Start a worker: ``python -P in_worker/ '{"mode": "serve", ...}'``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

PACKAGE = "hermes_rl_legacy_worker"
"""Not ``hermes_rl``: that need not be importable here, and must not be imported by accident."""


def load_package(name: str, directory: Path) -> None:
    """Import a directory as the package ``name``, wherever it lies."""
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    # A directory that is run as a program stands first on sys.path: our modules would hide others.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    load_package(PACKAGE, here)
    importlib.import_module(f"{PACKAGE}.worker").main(sys.argv[1])
