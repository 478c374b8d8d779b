"""``python -m hermes_rl``."""

from __future__ import annotations

import sys

from hermes_rl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
