"""Options of the ssh backend: hosts as ssh writes them, and errors that name the fix."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_rl.backends.ssh_options import SSHAddress, parse_options
from hermes_rl.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("build1", SSHAddress("build1")),
        ("me@build1", SSHAddress("build1", user="me")),
        ("me@build1:2222", SSHAddress("build1", 2222, "me")),
        ("[::1]", SSHAddress("::1")),
        ("me@[fe80::1]:22", SSHAddress("fe80::1", 22, "me")),
    ],
)
def test_hosts_are_read_and_written(text: str, address: SSHAddress) -> None:
    assert SSHAddress.parse(text) == address
    assert str(address) == text


def test_defaults_fill_in_what_a_host_does_not_say() -> None:
    options = parse_options({"hosts": "a,you@b:1", "user": "me", "port": 2})
    assert options.addresses() == [SSHAddress("a", 2, "me"), SSHAddress("b", 1, "you")]


def test_hermes_agents_variables_are_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMINAL_SSH_HOST", "build1")
    monkeypatch.setenv("TERMINAL_SSH_USER", "me")
    monkeypatch.setenv("TERMINAL_SSH_PORT", "2222")
    monkeypatch.setenv("TERMINAL_SSH_KEY", "~/.ssh/key")
    options = parse_options({})
    assert options.addresses() == [SSHAddress("build1", 2222, "me")]
    assert options.keys == (Path("~/.ssh/key"),)
    given = parse_options({"hosts": ["other"]})
    assert given.addresses() == [SSHAddress("other")]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"hosts": []}, "hosts"),
        ({"hosts": ["a", "a"]}, "named twice"),
        ({"hosts": ["::1"]}, "in brackets"),
        ({"hosts": ["a:99999"]}, "is no host"),
        ({"hosts": ["a b"]}, "is no host"),
        ({"hosts": ["a"], "ssh_isolation": "docker"}, "ssh_isolation"),
        ({"hosts": ["a"], "images": {"x": "relative"}}, "no absolute path"),
        ({"hosts": ["a"], "images": {"x": "/a:b"}}, "colon or comma"),
        ({"hosts": ["a"], "task_limits": "enforce"}, "task_limits"),
        ({"hosts": ["a"], "host": "b"}, "Known options: hosts"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_options(options)


def test_without_a_host_both_ways_to_give_one_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERMINAL_SSH_HOST", raising=False)
    with pytest.raises(ConfigError, match=r"backend_options.*TERMINAL_SSH_HOST"):
        parse_options({})
