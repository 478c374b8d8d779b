"""Counts of what parsing a turn gave, to sum over a rollout.

A format that never yields a call looks like a model that never calls: a reward curve shows
nothing, these counts do.
"""

from __future__ import annotations

from collections import Counter

from hermes_rl.types import ParseResult

__all__ = ["parse_counters"]


def parse_counters(result: ParseResult) -> dict[str, int]:
    """Return ``tool_calls``, ``invalid_<code>`` and ``marker_without_call``; zeros are left out.

    ``marker_without_call`` is 1 if the text held a start marker but no call, valid or not.
    """
    counts = Counter(f"invalid_{entry.code}" for entry in result.invalid)
    counts["tool_calls"] = len(result.tool_calls or ())
    counts["marker_without_call"] = int(
        result.markers > 0 and not result.tool_calls and not result.invalid
    )
    return {name: count for name, count in counts.items() if count}
