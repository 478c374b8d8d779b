"""The long sequences of groups and items: packed while they wait, lists for a subclass's hooks.

``ScoredDataItem`` and ``ScoredDataGroup`` promise lists, and hooks change them in place. Only for
an environment that has such a hook are lists made, one sequence to a turn of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import anyio
import anyio.lowlevel

from hermes_rl.packed import Packed, packed_floats, packed_ints
from hermes_rl.types import JSONObject

__all__ = ["has_own_hook", "listed", "packed"]

_PACKAGE = f"{__package__}."

_PACKERS: Mapping[str, Callable[[Any], Packed[Any]]] = {
    "tokens": packed_ints,
    "masks": packed_ints,
    "inference_logprobs": packed_floats,
    "ref_logprobs": packed_floats,
    "advantages": packed_floats,
}


def has_own_hook(env: object, name: str) -> bool:
    """Say whether a method is not this package's; only then are lists made for it."""
    function = getattr(getattr(env, name), "__func__", None)
    return function is None or not function.__module__.startswith(_PACKAGE)


async def packed(group: Mapping[str, Any]) -> JSONObject:
    """Return a group or an item with its long sequences packed.

    What is no clean sequence of numbers stays as it is.
    """
    return await _converted(group, _packed_or_same)


async def listed(group: Mapping[str, Any]) -> JSONObject:
    """Return a group or an item with lists in place of packed sequences."""
    return await _converted(group, _listed_or_same)


async def _converted(group: Mapping[str, Any], convert: Callable[[str, Any], Any]) -> JSONObject:
    made = dict(group)
    for key in _PACKERS.keys() & made.keys():
        value = made[key]
        if isinstance(value, list) and value and isinstance(value[0], list | tuple | Packed):
            rows = []
            for row in value:
                rows.append(convert(key, row))
                await anyio.lowlevel.checkpoint()
            made[key] = rows
        else:
            made[key] = convert(key, value)
            await anyio.lowlevel.checkpoint()
    return made


def _packed_or_same(key: str, value: Any) -> Any:
    if not isinstance(value, list | tuple) or not value:
        return value
    try:
        return _PACKERS[key](value)
    except (TypeError, OverflowError):
        return value


def _listed_or_same(key: str, value: Any) -> Any:
    return value.tolist() if isinstance(value, Packed) else value
