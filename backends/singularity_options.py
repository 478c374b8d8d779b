"""Options of the singularity backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hermes_rl.errors import ConfigError

__all__ = ["SingularityOptions", "UserMode", "parse_options"]

UserMode = Literal["auto", "default", "fakeroot", "userns"]


class SingularityOptions(BaseModel):
    """Backend options of ``singularity``."""

    model_config = ConfigDict(extra="forbid")

    image: str | None = None
    """Image of tasks that name none: ``docker://...``, a ``.sif`` file or a sandbox directory."""
    image_source: Literal["docker", "docker-daemon"] = "docker"
    """Where plain image names are looked up: in their registry, or in this machine's Docker."""
    task_limits: Literal["refuse", "ignore"] = "refuse"
    """What a task's limits on CPU and memory mean on a machine where none can be kept: a task that
    has some is skipped, or it runs without them."""
    user_mode: UserMode = "auto"
    """fakeroot: root inside, nobody outside. userns: one user, the engine's. default: as the
    installation has it. auto: what works here, fakeroot before the others unless you are root."""


def parse_options(options: Mapping[str, Any]) -> SingularityOptions:
    """Validate the backend's options.

    Raises:
        ConfigError: An option is unknown or has a wrong value; names it and what is known.
    """
    try:
        return SingularityOptions.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"Option {'.'.join(map(str, first['loc']))!r} of the singularity backend: "
            f"{first['msg']}. Known options: {', '.join(SingularityOptions.model_fields)}."
        ) from error
