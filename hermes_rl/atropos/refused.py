"""Names of ``BaseEnv`` that this library does not use."""

from __future__ import annotations

from typing import Any

from hermes_rl.errors import ConfigError

__all__ = ["Refused"]


class Refused:
    """A name of ``BaseEnv``'s machinery: looking it up says what does its work here."""

    def __init__(self, instead: str) -> None:
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, env: object, owner: type | None = None) -> Any:
        if env is None:
            return self
        raise ConfigError(f"BaseEnv.{self._name} is not used here: {self._instead}")
