"""GLM-4.7 and 5: the tags of GLM-4.5 without newlines between them."""

from __future__ import annotations

from typing import ClassVar

from hermes_rl.parsers.glm45 import GLM45Parser

__all__ = ["GLM47Parser"]


class GLM47Parser(GLM45Parser):
    """Tagged keys and values on one line; reads the layout of GLM-4.5 too."""

    name: ClassVar[str] = "glm47"
    newline: ClassVar[str] = ""
