"""Loading what an entry point names: the code of other packages, which may fail in any way."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points, metadata
from typing import Any

from hermes_rl.author_code import failure_text
from hermes_rl.errors import ConfigError, HermesRLError, MissingExtra

__all__ = ["load_plugin", "make_plugin"]


def load_plugin(point: EntryPoint, kind: str) -> Any:
    """Return the object that an entry point names.

    Args:
        point: The entry point.
        kind: What it is, for the error: ``Backend``.

    Raises:
        MissingExtra: It is a backend of ours whose packages are not there; names the extra.
        ConfigError: It cannot be imported, or another package claims its name; names package and
            reason.
    """
    _check_claims(point, kind)
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        problem = (
            f"{kind} {point.name!r} cannot be imported from {point.value}: "
            f"{type(error).__name__}: {error}.{_advice(point)}"
        )
        if isinstance(error, ImportError) and point.name in _extras(point):
            raise MissingExtra(
                f"{problem} Install it: pip install 'hermes_rl[{point.name}]'."
            ) from error
        raise ConfigError(problem) from error


def make_plugin(point: EntryPoint, kind: str, *arguments: Any, members: Sequence[str]) -> Any:
    """Return what the callable makes that an entry point names.

    Args:
        point: The entry point.
        kind: What it makes, for the error: ``Backend``.
        arguments: Of the callable.
        members: Attributes without which what it made is none.

    Raises:
        MissingExtra: See :func:`load_plugin`.
        ConfigError: See :func:`load_plugin`; it cannot be made, or lacks members.
        HermesRLError: Whatever of ours the callable raises.
    """
    make = load_plugin(point, kind)
    try:
        made = make(*arguments)
    except HermesRLError:
        raise
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        raise ConfigError(
            f"{kind} {point.name!r} cannot be made by {point.value}: {failure_text(error)}."
            f"{_advice(point)}"
        ) from error
    missing = [member for member in members if not hasattr(made, member)]
    if not missing:
        return made
    if inspect.iscoroutine(made):
        made.close()
    raise ConfigError(
        f"{kind} {point.name!r} is none: {point.value} made a {type(made).__name__}, which lacks "
        f"{', '.join(missing)}.{_advice(point)}"
    )


def _check_claims(point: EntryPoint, kind: str) -> None:
    """Raise ConfigError where a name is not one package's: which is meant, nobody can say."""
    claims = entry_points(group=point.group, name=point.name)
    if len({claim.value for claim in claims}) > 1:
        claimants = " and ".join(sorted(f"{_package(claim)} ({claim.value})" for claim in claims))
        raise ConfigError(
            f"{kind} {point.name!r} is claimed by {claimants}. Uninstall all but one of them, or "
            "register another name."
        )


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"


def _advice(point: EntryPoint) -> str:
    """Return whose it is and what to do, with a space in front; "" where it is ours."""
    package = _package(point)
    if point.dist is None or package == "hermes_rl":
        return ""
    return f" It belongs to the package {package}: mend that, or uninstall it."


def _extras(point: EntryPoint) -> Sequence[str]:
    """Return the extras that bring what our backends need; none for other plug-ins."""
    if point.group != "hermes_rl.backends" or not point.value.startswith("hermes_rl."):
        return ()
    return metadata("hermes_rl").get_all("Provides-Extra") or ()
