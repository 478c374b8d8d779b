"""Options of the local backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hermes_rl.errors import ConfigError

__all__ = ["Isolation", "LocalOptions", "parse_options"]

Isolation = Literal["none", "auto", "bwrap"]


class LocalOptions(BaseModel):
    """Backend options of ``local``."""

    model_config = ConfigDict(extra="forbid")

    local_isolation: Isolation = "none"
    """none: commands run as you, on your files. bwrap: each sandbox in bubblewrap. auto: bwrap
    where it works, else none, with a warning."""


def parse_options(options: Mapping[str, Any]) -> LocalOptions:
    """Validate the backend's options.

    Raises:
        ConfigError: An option is unknown or has a wrong value; names it and what is known.
    """
    try:
        return LocalOptions.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"Option {'.'.join(map(str, first['loc']))!r} of the local backend: {first['msg']}. "
            f"Known options: {', '.join(LocalOptions.model_fields)} (none, auto, bwrap)."
        ) from error
