"""Granite 4: the Hermes format, tags and JSON on one line."""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.parsers.format import END_TOKENS
from hermes_rl.parsers.hermes import HermesParser

__all__ = ["Granite4Parser"]


class Granite4Parser(HermesParser):
    """The same calls as Hermes."""

    name: ClassVar[str] = "granite4"
    end_tokens: ClassVar[tuple[str, ...]] = (*END_TOKENS, "<|end_of_text|>")
