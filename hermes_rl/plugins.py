"""Loading what an entry point names: the code of other packages, which may fail in any way."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, metadata
from typing import Any

from hermes_rl.errors import ConfigError, MissingExtra

__all__ = ["load_plugin"]


def load_plugin(point: EntryPoint, kind: str) -> Any:
    """Return the object that an entry point names.

    Args:
        point: The entry point.
        kind: What it is, for the error: ``Backend``.

    Raises:
        MissingExtra: It is a backend of ours whose packages are not there; names the extra.
        ConfigError: It cannot be imported; names package and reason.
    """
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        problem = (
            f"{kind} {point.name!r} cannot be imported from {point.value}: "
            f"{type(error).__name__}: {error}."
        )
        if isinstance(error, ImportError) and point.name in _extras(point):
            raise MissingExtra(
                f"{problem} Install it: pip install 'hermes_rl[{point.name}]'."
            ) from error
        raise ConfigError(problem) from error


def _extras(point: EntryPoint) -> Sequence[str]:
    """Return the extras that bring what our backends need; none for other plug-ins."""
    if point.group != "hermes_rl.backends" or not point.value.startswith("hermes_rl."):
        return ()
    return metadata("hermes_rl").get_all("Provides-Extra") or ()
