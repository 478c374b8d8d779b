"""Options of the ssh backend, and what a host is called."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from hermes_rl.errors import ConfigError, NotSetUp

__all__ = ["Isolation", "SSHAddress", "SSHOptions", "parse_options"]

Isolation = Literal["none", "auto", "bwrap"]
_ADDRESS = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<v6>[^\]\s]+)\]|(?P<host>[^:@\s]+))(?::(?P<port>\d{1,5}))?\Z"
)
_VARIABLES = {
    "hosts": "TERMINAL_SSH_HOST",
    "user": "TERMINAL_SSH_USER",
    "port": "TERMINAL_SSH_PORT",
    "keys": "TERMINAL_SSH_KEY",
}
"""What hermes-agent reads, for options that are not given."""


@dataclass(slots=True, frozen=True)
class SSHAddress:
    """Where a host is; what is None comes from the ssh configuration, or is ssh's default."""

    host: str
    port: int | None = None
    user: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``[user@]host[:port]``; a bare IPv6 address goes into brackets.

        Raises:
            ValueError: It is none.
        """
        found = _ADDRESS.match(text)
        if found is None or int(found["port"] or 1) not in range(1, 65536):
            raise ValueError(
                f"{text!r} is no host; write [user@]host[:port], IPv6 addresses in brackets"
            )
        port = int(found["port"]) if found["port"] else None
        return cls(found["v6"] or found["host"], port, found["user"])

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = "" if self.user is None else f"{self.user}@"
        return f"{user}{host}" + ("" if self.port is None else f":{self.port}")


class SSHOptions(BaseModel):
    """Backend options of ``ssh``."""

    model_config = ConfigDict(extra="forbid")

    hosts: tuple[str, ...] = Field(min_length=1)
    """Each ``[user@]host[:port]`` or a name from your ssh configuration."""
    user: str | None = None
    """Of hosts that name none."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """Of hosts that name none."""
    keys: tuple[Path, ...] = ()
    """Private keys to log in with; none = the agent's and ~/.ssh/id_*, as ssh does."""
    config: tuple[Path, ...] | None = None
    """ssh configuration files; None = ~/.ssh/config, if there is one; [] = none at all."""
    known_hosts: Path | None = None
    """File of host keys; None = as ssh's configuration says, else ~/.ssh/known_hosts."""
    check_host_key: bool = True
    """Off: whoever answers at the address is believed. Only in networks that are yours alone."""
    ssh_isolation: Isolation = "none"
    """none: commands run as the login user on its files. bwrap: each sandbox in bubblewrap. auto:
    bwrap where it works, else none, with a warning."""
    directory: str = ""
    """On the host, for sandboxes; "" = /tmp/hermes_rl-ssh-<uid>."""
    images: dict[str, str] = Field(default_factory=dict)
    """Image name -> directory on every host with the image's files, or a tar archive of them (from
    ``docker export``), unpacked there once; with bwrap only."""
    task_limits: Literal["refuse", "ignore"] = "refuse"
    """What a task's limits on CPU and memory mean here, where none can be kept: a task that has
    some is skipped, or it runs without them."""
    sandboxes_per_host: int = Field(default=64, ge=1)
    """Alive at once on one host; more wait."""
    sessions_per_connection: int = Field(default=10, ge=1)
    """sshd's MaxSessions. Where more are needed further connections are opened."""
    keepalive_s: float = Field(default=15.0, gt=0)
    """A connection on which nothing came for three times as long is given up."""
    connect_timeout_s: float = Field(default=30.0, gt=0)
    """For connecting and logging in."""

    @field_validator("hosts", "keys", "config", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """One text may name several, with commas."""
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    @field_validator("hosts")
    @classmethod
    def _are_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            SSHAddress.parse(text)
        if len(set(value)) < len(value):
            raise ValueError("a host is named twice")
        return value

    @field_validator("images")
    @classmethod
    def _are_absolute(cls, value: dict[str, str]) -> dict[str, str]:
        for name, root in value.items():
            if not root.startswith("/") or any(mark in root for mark in ":,\\"):
                raise ValueError(f"{name}: {root!r} is no absolute path without colon or comma")
        return value

    def addresses(self) -> list[SSHAddress]:
        """Return the hosts, with the defaults for user and port filled in."""
        found = [SSHAddress.parse(text) for text in self.hosts]
        return [
            SSHAddress(each.host, each.port or self.port, each.user or self.user) for each in found
        ]


def parse_options(options: Mapping[str, Any]) -> SSHOptions:
    """Validate the backend's options; hosts that are not given come from ``TERMINAL_SSH_HOST``.

    Raises:
        ConfigError: An option is unknown or has a wrong value; names it and what is known.
    """
    given = dict(options)
    if "hosts" not in given:
        given = {k: os.environ[v] for k, v in _VARIABLES.items() if os.environ.get(v)} | given
    if "hosts" not in given:
        raise NotSetUp(
            'The ssh backend needs hosts: --env.backend_options \'{"hosts": ["user@host"]}\', or '
            "the variable TERMINAL_SSH_HOST."
        )
    try:
        return SSHOptions.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(
            f"Option {'.'.join(map(str, first['loc']))!r} of the ssh backend: "
            f"{str(first['msg']).removeprefix('Value error, ')}. "
            f"Known options: {', '.join(SSHOptions.model_fields)}."
        ) from error
