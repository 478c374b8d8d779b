"""Credentials that ``docker login`` left, and how the daemon is reached over TLS."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import orjson
import pytest

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.backends.docker_connection import open_client, registry_auth, registry_config
from hermes_rl.errors import ConfigError

HUB = "https://index.docker.io/v1/"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    return tmp_path / "config.json"


def _log_in(config: Path, **registries: str) -> None:
    auths = {
        name: {"auth": base64.b64encode(pair.encode()).decode()}
        for name, pair in registries.items()
    }
    config.write_bytes(orjson.dumps({"auths": auths}))


def _decoded(headers: dict[str, str], name: str) -> Any:
    return orjson.loads(base64.urlsafe_b64decode(headers[name]))


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("debian", HUB),
        ("someone/thing:1", HUB),
        ("ghcr.io/someone/thing", "ghcr.io"),
        ("localhost:5000/thing", "localhost:5000"),
        ("localhost/thing@sha256:12", "localhost"),
    ],
)
def test_an_image_is_pulled_with_its_registrys_credentials(
    config: Path, image: str, registry: str
) -> None:
    _log_in(config, **{registry: "me:secret:with:colons", "other.io": "x:y"})
    assert _decoded(registry_auth(image), "X-Registry-Auth") == {
        "username": "me",
        "password": "secret:with:colons",
        "serveraddress": registry,
    }


def test_a_registry_without_login_gets_none(config: Path) -> None:
    _log_in(config, **{"ghcr.io": "me:secret"})
    assert registry_auth("debian") == {}


def test_a_build_gets_all(config: Path) -> None:
    _log_in(config, **{HUB: "a:1", "ghcr.io": "b:2"})
    sent = _decoded(registry_config(), "X-Registry-Config")
    assert {name: entry["username"] for name, entry in sent.items()} == {HUB: "a", "ghcr.io": "b"}


@pytest.mark.parametrize(
    "text",
    [None, "", "not json", "[]", "{}", '{"auths": {"x": {}}}', '{"auths": {"x": {"auth": 5}}}'],
)
def test_a_configuration_without_credentials_gives_none(config: Path, text: str | None) -> None:
    if text is not None:
        config.write_text(text)
    assert (registry_auth("x/y"), registry_config()) == ({}, {})


@pytest.mark.parametrize(
    ("host", "verify", "address"),
    [
        ("tcp://10.0.0.1:2375", None, "http://10.0.0.1:2375"),
        ("tcp://10.0.0.1:2376", "1", "https://10.0.0.1:2376"),
        ("tcp://10.0.0.1", None, "http://10.0.0.1:2375"),
        ("tcp://10.0.0.1", "1", "https://10.0.0.1:2376"),
        ("tcp://[::1]:2375", None, "http://[::1]:2375"),
        ("https://docker.example:2376", None, "https://docker.example:2376"),
    ],
)
async def test_a_remote_daemon_is_reached_over_tls_when_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    verify: str | None,
    address: str,
) -> None:
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    if verify is not None:
        monkeypatch.setenv("DOCKER_TLS_VERIFY", verify)
    client = open_client(host)
    try:
        assert client.docker_host == address
        assert client.connector.limit == 0
    finally:
        await client.close()
        await client.connector.close()


@pytest.mark.parametrize(
    "host",
    [
        *("ssh://me@host", "/run/docker.sock", "unix://", "unix://relative", "tcp://", " "),
        *("tcp://127.0.0.1:notaport", "tcp://[::1", "https://", "npipe:////./pipe"),
    ],
)
def test_an_address_that_cannot_be_used_is_told_with_those_that_can(host: str) -> None:
    with pytest.raises(ConfigError, match=r"DOCKER_HOST=.* cannot be used: write unix:///PATH"):
        open_client(host)


@pytest.mark.parametrize("name", ["ca.pem", "cert.pem"])
def test_certificates_that_cannot_be_read_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    (tmp_path / name).write_text("no certificate")
    with pytest.raises(ConfigError, match="DOCKER_CERT_PATH"):
        open_client("https://127.0.0.1:2376")
