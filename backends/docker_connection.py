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
from yarl import URL

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

    Raises:
        ConfigError: DOCKER_HOST or the certificates cannot be used.
    """
    scheme, _, address = host.partition("://")
    if scheme == "unix" and address.startswith("/"):
        return Docker("unix://localhost", connector=aiohttp.UnixConnector(address, limit=0))
    if scheme not in ("tcp", "http", "https"):
        raise _unusable(host)
    tls = _tls() if scheme == "https" or os.environ.get("DOCKER_TLS_VERIFY") else None
    url = _url(host, f"{'https' if tls else 'http'}://{address}")
    if scheme == "tcp" and url.explicit_port is None:
        url = url.with_port(2376 if tls else 2375)
    connector = aiohttp.TCPConnector(limit=0, ssl=True if tls is None else tls)
    return Docker(str(url).rstrip("/"), connector=connector)


def _url(host: str, text: str) -> URL:
    try:
        url = URL(text)
    except ValueError:
        raise _unusable(host) from None
    if not url.host:
        raise _unusable(host)
    return url


def _unusable(host: str) -> ConfigError:
    return ConfigError(
        f"DOCKER_HOST={host} cannot be used: write unix:///PATH, tcp://HOST:PORT or "
        "https://HOST:PORT. What is reached by ssh needs its socket forwarded: "
        "ssh -fNL /tmp/docker.sock:/run/docker.sock HOST"
    )


def _tls() -> ssl.SSLContext:
    """Return the context with the docker command's own certificates.

    Raises:
        ConfigError: They cannot be read.
    """
    directory = Path(os.path.expanduser(os.environ.get("DOCKER_CERT_PATH", "~/.docker")))
    context = ssl.create_default_context()
    try:
        if (authority := directory / "ca.pem").exists():
            context.load_verify_locations(cafile=authority)
        if (certificate := directory / "cert.pem").exists():
            context.load_cert_chain(certificate, directory / "key.pem")
    except OSError as error:
        raise ConfigError(
            f"The certificates for Docker in {directory} cannot be used: {error}. Point "
            "DOCKER_CERT_PATH at the directory with ca.pem, cert.pem and key.pem."
        ) from error
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
    directory = Path(os.path.expanduser(os.environ.get("DOCKER_CONFIG", "~/.docker")))
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
