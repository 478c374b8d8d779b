"""Where the container engine is, a client for it, and the credentials of ``docker login``."""

from __future__ import annotations

import base64
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import orjson
from aiodocker import Docker

from hermes_rl.errors import BackendUnavailable, ConfigError

__all__ = ["docker_host", "open_client", "registry_auth", "registry_config"]

_HUB = "https://index.docker.io/v1/"
"""Docker Hub's name in the configuration of the docker command."""


def docker_host(environ: Mapping[str, str] = os.environ) -> str:
    """Return the daemon's address: DOCKER_HOST, else the first usual socket that exists.

    Raises:
        BackendUnavailable: There is none.
    """
    if host := environ.get("DOCKER_HOST"):
        return host
    home, runtime = environ.get("HOME", "/root"), environ.get("XDG_RUNTIME_DIR", "/run")
    sockets = [
        Path("/run/docker.sock"),
        Path("/var/run/docker.sock"),
        Path(runtime, "docker.sock"),
        Path(home, ".docker/run/docker.sock"),
        Path(home, ".docker/desktop/docker.sock"),
    ]
    for path in sockets:
        if path.is_socket():
            return f"unix://{path}"
    raise BackendUnavailable(
        f"No Docker daemon found: none of {', '.join(map(str, sockets))} exists. "
        "Start dockerd, or set DOCKER_HOST.",
        backend="docker",
    )


def open_client(host: str) -> Docker:
    """Open a client without a limit on connections.

    aiohttp's default of 100 makes the 101st attached sandbox, and with it every other call, wait
    for ever. A connector passed in stays ours to close.
    """
    if host.startswith("unix://"):
        path = host.removeprefix("unix://")
        return Docker("unix://localhost", connector=aiohttp.UnixConnector(path, limit=0))
    scheme, _, address = host.partition("://")
    if scheme not in ("tcp", "http", "https"):
        raise ConfigError(
            f"DOCKER_HOST={host} is not supported: use unix://PATH, tcp://HOST:PORT or https://."
        )
    tls = _tls() if scheme == "https" or os.environ.get("DOCKER_TLS_VERIFY") else None
    connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)
    return Docker(f"{'https' if tls else 'http'}://{address}", connector=connector)


def _tls() -> ssl.SSLContext:
    directory = Path(os.environ.get("DOCKER_CERT_PATH", "~/.docker")).expanduser()
    context = ssl.create_default_context()
    if (authority := directory / "ca.pem").exists():
        context.load_verify_locations(cafile=authority)
    if (certificate := directory / "cert.pem").exists():
        context.load_cert_chain(certificate, directory / "key.pem")
    return context


def registry_auth(image: str) -> dict[str, str]:
    """Return the header with the credentials for an image's registry, if there are any.

    Only what ``docker login`` keeps in config.json itself is read; credential helpers are not run.
    """
    first, slash, _ = image.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    credentials = _credentials().get(first if is_host else _HUB)
    return {} if credentials is None else {"X-Registry-Auth": _encoded(credentials)}


def registry_config() -> dict[str, str]:
    """Return the header with the credentials of all registries, for a build."""
    credentials = _credentials()
    return {"X-Registry-Config": _encoded(credentials)} if credentials else {}


def _credentials() -> dict[str, dict[str, str]]:
    directory = Path(os.environ.get("DOCKER_CONFIG", "~/.docker")).expanduser()
    try:
        entries = orjson.loads((directory / "config.json").read_bytes()).get("auths") or {}
        pairs = {
            registry: base64.b64decode(entry["auth"]).decode().partition(":")
            for registry, entry in entries.items()
            if entry.get("auth")
        }
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return {
        registry: {"username": user, "password": password, "serveraddress": registry}
        for registry, (user, _, password) in pairs.items()
    }


def _encoded(value: object) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(value)).decode()
