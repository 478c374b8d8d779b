"""Step-3.5: the calls of Qwen3-Coder."""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.parsers.qwen3_coder import Qwen3CoderParser

__all__ = ["Step3p5Parser"]


class Step3p5Parser(Qwen3CoderParser):
    """The same calls as Qwen3-Coder."""

    name: ClassVar[str] = "step3p5"
