"""Run tool-calling language-model agents in sandboxes, score them, and train on them."""

from __future__ import annotations

__version__ = "0.1.0"

__all__: list[str] = []
