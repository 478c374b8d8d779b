"""The one setting of commands that only look at a backend: its options."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_rl.config_sources import Flag, flag_layer
from hermes_rl.errors import ConfigError
from hermes_rl.types import JSONObject

__all__ = ["backend_options"]


def backend_options(flags: Sequence[Flag], *, command: str) -> JSONObject:
    """Return what ``--env.backend_options`` says, {} without it.

    Args:
        flags: Of the command line.
        command: Its name, for errors.

    Raises:
        ConfigError: There is another flag, or the value is no JSON object.
    """
    for flag in flags:
        if str(flag) != "--env.backend_options":
            raise ConfigError(
                f"{command} takes no settings but --env.backend_options, and got {flag}."
            )
    options = flag_layer(flags).env.get("backend_options", {})
    if not isinstance(options, dict):
        raise ConfigError("--env.backend_options wants a JSON object: '{\"name\": value}'.")
    return options
