"""Where a model server is, and which key belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from pydantic import SecretStr

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError

__all__ = ["OPENAI_URL", "OPENROUTER_URL", "Address", "check_base_url", "resolve_address"]

OPENAI_URL = "https://api.openai.com/v1"
OPENROUTER_URL = "https://openrouter.ai/api/v1"

_KEY_VARIABLES = {"openrouter.ai": "OPENROUTER_API_KEY", "api.openai.com": "OPENAI_API_KEY"}
"""Hosts that answer nothing without a key, and the variable that holds it."""


@dataclass(slots=True, frozen=True)
class Address:
    """A server's base address and key.

    Attributes:
        base_url: Up to and with ``/v1``.
        api_key: None = send none.
    """

    base_url: str
    api_key: SecretStr | None = None

    @property
    def is_openrouter(self) -> bool:
        """Whether the server speaks OpenRouter's additions."""
        return _host(self.base_url) == "openrouter.ai"

    @property
    def key_hint(self) -> str:
        """What to do when the server refuses the key."""
        variable = _KEY_VARIABLES.get(_host(self.base_url), "OPENAI_API_KEY")
        return f"Check --openai.api_key, or {variable} in the environment."


def resolve_address(config: ServerConfig, environ: Mapping[str, str]) -> Address:
    """Apply the defaults of ``base_url`` and ``api_key``.

    Without ``base_url``: OpenRouter if ``OPENROUTER_API_KEY`` is set, else OpenAI. Without
    ``api_key``: ``OPENROUTER_API_KEY`` for openrouter.ai, else ``OPENAI_API_KEY``.

    Raises:
        ConfigError: The address is unusable, or the host is known to need a key and none is set.
    """
    base_url = config.base_url or _default_url(config, environ)
    check_base_url(base_url)
    host = _host(base_url)
    variable = _KEY_VARIABLES.get(host, "OPENAI_API_KEY")
    key = _usable(config.api_key, "openai.api_key") or _usable(environ.get(variable), variable)
    if key is None and host in _KEY_VARIABLES:
        raise ConfigError(f"{host} needs a key: set {variable} in the environment or in .env.")
    return Address(base_url, key)


def _default_url(config: ServerConfig, environ: Mapping[str, str]) -> str:
    if environ.get("OPENROUTER_API_KEY"):
        return OPENROUTER_URL
    if config.api_key or environ.get("OPENAI_API_KEY"):
        return OPENAI_URL
    raise ConfigError(
        "No model server is named: set --openai.base_url (for example http://127.0.0.1:8000/v1), "
        "or OPENROUTER_API_KEY or OPENAI_API_KEY, or use --openai.server_type local."
    )


def _usable(value: SecretStr | str | None, source: str) -> SecretStr | None:
    """Return a key as it can stand in a header, without blanks around it; None if there is none."""
    text = value.get_secret_value() if isinstance(value, SecretStr) else value or ""
    key = text.strip()
    if not all("!" <= character <= "~" for character in key):
        raise ConfigError(f"{source} holds characters that no key has: blanks, breaks or accents.")
    return SecretStr(key) if key else None


def _host(base_url: str) -> str:
    return httpx.URL(base_url).host.removeprefix("www.")


def check_base_url(base_url: str) -> httpx.URL:
    """Return the parsed address.

    Raises:
        ConfigError: It is no http(s) address, or holds a user name, password or query.
    """
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise ConfigError(f"base_url is not an address: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(
            f"base_url {base_url!r} must start with http:// or https://, for example "
            "http://127.0.0.1:8000/v1"
        )
    if url.userinfo or url.query or url.fragment:
        raise ConfigError(
            "base_url must not hold a user name, password, query or fragment; "
            "put the key in api_key or in the environment."
        )
    return url
