"""Named toolset distributions: with which chance each toolset is enabled for a group.

Names and percentages are those of hermes-agent 0.19. Each toolset is drawn independently (the
numbers need not add up to 100) from the generator given, so that a seed decides; if nothing was
drawn, the likeliest toolset is taken.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from hermes_rl.errors import UnknownName

__all__ = ["DISTRIBUTIONS", "sample_distribution"]


def _percent(text: str) -> Mapping[str, int]:
    pairs = (item.split(":") for item in text.split())
    return MappingProxyType({name: int(value) for name, value in pairs})


DISTRIBUTIONS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "default": _percent("web:100 vision:100 image_gen:100 terminal:100 file:100 browser:100"),
        "image_gen": _percent("image_gen:90 vision:90 web:55 terminal:45"),
        "research": _percent("web:90 browser:70 vision:50 terminal:10"),
        "science": _percent("web:94 terminal:94 file:94 vision:65 browser:50 image_gen:15"),
        "development": _percent("terminal:80 file:80 web:30 vision:10"),
        "safe": _percent("web:80 browser:70 vision:60 image_gen:60"),
        "balanced": _percent("web:50 vision:50 image_gen:50 terminal:50 file:50 browser:50"),
        "minimal": _percent("web:100"),
        "terminal_only": _percent("terminal:100 file:100"),
        "terminal_web": _percent("terminal:100 file:100 web:100"),
        "creative": _percent("image_gen:90 vision:90 web:30"),
        "reasoning": _percent("web:90 file:60 terminal:20"),
        "browser_use": _percent("browser:100 web:80 vision:70"),
        "browser_only": _percent("browser:100"),
        "browser_tasks": _percent("browser:97 vision:12 terminal:15"),
        "terminal_tasks": _percent("terminal:97 file:97 web:97 browser:75 vision:50 image_gen:10"),
        "mixed_tasks": _percent("browser:92 terminal:92 file:92 web:35 vision:15 image_gen:15"),
    }
)
"""Percent per toolset, by distribution."""


def sample_distribution(name: str, generator: random.Random) -> list[str]:
    """Draw the toolsets of one group.

    Args:
        name: Name of a distribution.
        generator: Decides; one draw per toolset, in the order of the table.

    Raises:
        UnknownName: No such distribution; lists the nearest.
    """
    percentages = DISTRIBUTIONS.get(name)
    if percentages is None:
        raise UnknownName.of("toolset distribution", name, DISTRIBUTIONS)
    drawn = [toolset for toolset, percent in percentages.items()
             if generator.random() * 100 < percent]  # fmt: skip
    return drawn or [max(percentages, key=lambda toolset: percentages[toolset])]
