"""Qwen2.5, QwQ and Qwen3: the Hermes format under the family's own name."""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.parsers.hermes import HermesParser

__all__ = ["QwenParser"]


class QwenParser(HermesParser):
    """The same calls as Hermes."""

    name: ClassVar[str] = "qwen"
