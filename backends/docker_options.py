"""Options of the docker backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from hermes_rl.errors import ConfigError

__all__ = ["DockerOptions", "parse_options"]


class DockerOptions(BaseModel):
    """Backend options of ``docker``."""

    model_config = ConfigDict(extra="forbid")

    image: str | None = None
    """Image of sandboxes whose spec names none."""
    hardening: Literal["default", "strict"] = "default"
    """strict: no kernel capabilities but the supervisor's three, and no way to gain more. Breaks
    tasks that use sudo, sshd or ports below 1024."""
    read_only: bool = False
    """Root file system read-only; /tmp, /var/tmp and /run are memory."""
    runtime: Literal["auto", "bind", "volume"] = "auto"
    """How the interpreter reaches the sandbox: bind from this host's cache directory, or a volume
    filled through the daemon; auto = bind if the daemon sees our files."""


def parse_options(options: Mapping[str, Any]) -> DockerOptions:
    """Validate the backend's options.

    Raises:
        ConfigError: An option is unknown or has a wrong value; names it and what is known.
    """
    try:
        return DockerOptions.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"Option {'.'.join(map(str, first['loc']))!r} of the docker backend: {first['msg']}. "
            f"Known options: {', '.join(DockerOptions.model_fields)}."
        ) from error
