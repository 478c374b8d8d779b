"""How large a value may be that someone gives us: numbers, text, nesting.

Every setting, whatever its source, passes :func:`value_fault`, so that what is accepted can also
be written to a run directory and sent to a model: JSON with integers of 64 bits, finite numbers
and text that is valid UTF-8. Single fields have narrower bounds where they are declared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = [
    "LONGEST_S",
    "MOST",
    "MOST_MEMORY_MB",
    "MOST_ROLLOUTS",
    "MOST_TOKENS",
    "MOST_WORKERS",
    "number_fault",
    "shown",
    "value_fault",
]

LONGEST_S = 366 * 86_400
"""Seconds of any limit: a year. Beyond about 50 days clocks of kernels and daemons overflow."""
MOST = 1_000_000
"""Of things that are counted one by one: turns, sandboxes, retries."""
MOST_TOKENS = 1_000_000_000
"""Tokens of one sequence."""
MOST_MEMORY_MB = 1 << 30
"""One PiB."""
MOST_WORKERS = 10_000
"""Tasks of an event loop, threads and processes that are made at once."""
MOST_ROLLOUTS = 100_000
"""Rollouts of one run: their keys are held in memory and compared in one go."""
_INTEGER_BITS = 63
"""JSON writers of most languages hold no more."""
_DEEPEST = 64
"""Levels of lists and mappings in one value; orjson writes at most 254."""
_MOST_VALUES = 100_000
"""Values inside one value, those behind YAML aliases counted each time."""
_LONGEST_SHOWN = 100


def number_fault(value: float) -> str | None:
    """Say why a number cannot be used, None if it can."""
    if isinstance(value, int):
        if abs(value).bit_length() > _INTEGER_BITS:
            return f"lies outside -2**{_INTEGER_BITS} to 2**{_INTEGER_BITS}"
        return None
    return None if math.isfinite(value) else "is not a finite number"


def value_fault(value: Any) -> str | None:
    """Say why a value cannot be used as a setting, None if it can.

    Looks into lists and mappings; objects of other kinds are not judged.
    """
    for count, (depth, inner) in enumerate(_values_in(value)):
        if depth > _DEEPEST:
            return f"is nested more than {_DEEPEST} levels deep"
        if count >= _MOST_VALUES:
            return f"holds more than {_MOST_VALUES} values"
        fault = _scalar_fault(inner)
        if fault is not None:
            return fault
    return None


def _values_in(value: Any) -> Iterator[tuple[int, Any]]:
    """Yield everything in a value, keys too, with its depth. Does not end on one in itself."""
    stack = [(0, value)]
    while stack:
        depth, inner = stack.pop()
        yield depth, inner
        if isinstance(inner, Mapping):
            stack += ((depth + 1, part) for pair in inner.items() for part in pair)
        elif isinstance(inner, list | tuple):
            stack += ((depth + 1, part) for part in inner)


def _scalar_fault(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return number_fault(value)
    if isinstance(value, str) and not _is_utf8(value):
        return "holds text that is not valid UTF-8"
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def shown(value: Any) -> str:
    """Return a value for an error message: one line, cut where it is long."""
    try:
        text = ascii(value) if isinstance(value, str) and not _is_utf8(value) else repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4,300 digits; endless nesting
        return f"that {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."
