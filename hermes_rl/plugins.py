"""Loading what an entry point names: the code of other packages, which may fail in any way."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

from hermes_rl.errors import ConfigError

__all__ = ["load_plugin"]


def load_plugin(point: EntryPoint, kind: str) -> Any:
    """Return the object that an entry point names.

    Args:
        point: The entry point.
        kind: What it is, for the error: ``Backend``.

    Raises:
        ConfigError: It cannot be imported; names package and reason, and the extra where the
            entry point is one of ours.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        hint = ""
        if isinstance(error, ImportError) and point.value.startswith("hermes_rl."):
            hint = f" Install it: pip install 'hermes_rl[{point.name}]'"
        raise ConfigError(
            f"{kind} {point.name!r} cannot be imported from {point.value}: "
            f"{type(error).__name__}: {error}.{hint}"
        ) from error
