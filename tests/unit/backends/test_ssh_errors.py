"""One case per row of the ssh backend's table of errors."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

pytest.importorskip("asyncssh", reason="needs hermes_rl[ssh]")

import asyncssh

from hermes_rl.backends.ssh_errors import PresentedKey, connect_error, session_error
from hermes_rl.backends.ssh_options import SSHAddress
from hermes_rl.errors import BackendUnavailable, ConfigError, HermesRLError

HOST = SSHAddress("build1", 2222, "me")
DISTRUSTED = asyncssh.HostKeyNotVerifiable("Host key is not trusted for host build1")


def shown(*, has_other: bool) -> PresentedKey:
    return PresentedKey(
        host="build1.lan",
        port=2222,
        algorithm="ssh-ed25519",
        fingerprint="SHA256:abc",
        has_other=has_other,
        place=Path("/known"),
    )


@pytest.mark.parametrize(
    ("error", "kind", "fix"),
    [
        (DISTRUSTED, ConfigError, "not trusted for host build1"),
        (asyncssh.PermissionDenied("no"), ConfigError, "authorized_keys"),
        (asyncssh.KeyImportError("bad key"), ConfigError, "bad key"),
        (asyncssh.ConfigParseError("line 3"), ConfigError, "line 3"),
        (TimeoutError(), BackendUnavailable, "firewall"),
        (ConnectionRefusedError(111, "refused"), BackendUnavailable, "sshd runs there"),
        (socket.gaierror(-2, "Name not known"), BackendUnavailable, "spelling"),
        (asyncssh.ConnectionLost("closed"), BackendUnavailable, "MaxStartups"),
        (asyncssh.KeyExchangeFailed("no match"), BackendUnavailable, "algorithm in common"),
    ],
)
def test_each_failure_has_its_error_and_fix(
    error: Exception, kind: type[HermesRLError], fix: str
) -> None:
    found = connect_error(error, host=HOST, user="me", keys=["/key"], shown=None)
    assert type(found) is kind
    assert fix in str(found)
    assert "me@build1:2222" in str(found)


def test_an_unknown_host_key_is_shown_with_how_to_add_it() -> None:
    found = connect_error(DISTRUSTED, host=HOST, user="me", keys=[], shown=shown(has_other=False))
    assert "ssh-ed25519 key has the fingerprint SHA256:abc" in str(found)
    assert str(found).endswith("ssh-keyscan -p 2222 build1.lan >> /known")


def test_another_host_key_is_told_from_an_unknown_one() -> None:
    found = connect_error(DISTRUSTED, host=HOST, user="me", keys=[], shown=shown(has_other=True))
    assert "someone stands between" in str(found)
    assert "ssh-keygen -f /known -R '[build1.lan]:2222'" in str(found)


def test_without_keys_those_of_the_agent_are_named() -> None:
    denied = asyncssh.PermissionDenied("no")
    found = connect_error(denied, host=HOST, user="me", keys=[], shown=None)
    assert "~/.ssh/id_*" in str(found)


def test_a_refused_session_names_what_restricts_it() -> None:
    found = session_error(asyncssh.ChannelOpenError(1, "open failed"), host=HOST)
    assert isinstance(found, BackendUnavailable)
    assert "MaxSessions" in str(found)
    assert "ForceCommand" in str(found)
