"""Options of cloud backends, as far as they share them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_rl.errors import ConfigError

__all__ = ["CloudOptions", "parse_cloud_options"]


class CloudOptions(BaseModel):
    """What every cloud backend takes."""

    model_config = ConfigDict(extra="forbid")

    image: str | None = None
    """Image of sandboxes whose spec names none."""
    creations_per_s: float = Field(default=5.0, gt=0)
    """How many sandboxes are asked for a second, by this run. Lower it when several runs share an
    account's limit."""
    creation_burst: int = Field(default=5, ge=1)
    """How many may be asked for at once after a while without any."""


Options = TypeVar("Options", bound=CloudOptions)


def parse_cloud_options(backend: str, model: type[Options], options: Mapping[str, Any]) -> Options:
    """Validate a backend's options.

    Raises:
        ConfigError: An option is unknown or has a wrong value; names it and what is known.
    """
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"Option {'.'.join(map(str, first['loc']))!r} of the {backend} backend: "
            f"{first['msg']}. Known options: {', '.join(model.model_fields)}."
        ) from error
