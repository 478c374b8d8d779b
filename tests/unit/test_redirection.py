"""Names that lead elsewhere, without a container; in one: tests/integration."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hermes_rl.redirection import redirection_flags
from hermes_rl.sandbox import Capability, ExecResult
from hermes_rl.testing.fake_sandbox import FakeSandbox

HOSTS = """127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
172.17.0.2\t4f1d5a8a3d10
"""
ROUTED = "Iface\tDestination\tGateway\neth0\t00000000\t010011AC\n"
UNROUTED = "Iface\tDestination\tGateway\n"


def sandbox_with(hosts: str, resolver: str = "", routes: str = ROUTED) -> FakeSandbox:
    """A sandbox that answers as cat would."""

    def answer(command: str | Sequence[str]) -> ExecResult:
        text = f"\n{command[-1]}\n".join([hosts, resolver, routes])
        return ExecResult(exit_code=0, stdout=text.encode(), stdout_total=len(text.encode()))

    sandbox = FakeSandbox(run=answer)
    sandbox.capabilities = frozenset({Capability.ENGINE_ACCESS})
    return sandbox


async def flags_of(hosts: str = HOSTS, resolver: str = "", routes: str = ROUTED) -> Sequence[str]:
    return await redirection_flags(sandbox_with(hosts, resolver, routes))


@pytest.mark.parametrize(
    "line",
    [
        "127.0.0.1 astral.sh",
        "10.0.0.1\tmirror.local files.pythonhosted.org",
        "::1 deb.debian.org",
        "127.0.0.1 PyPI.org.",
        "127.0.0.1 raw.githubusercontent.com # a comment",
    ],
)
async def test_a_package_servers_name_is_a_flag(line: str) -> None:
    (flag,) = await flags_of(HOSTS + line + "\n")
    assert flag == f"tamper_suspect: /etc/hosts ({line})"


@pytest.mark.parametrize(
    "line",
    [
        "127.0.0.1 myapp.local",
        "# 127.0.0.1 pypi.org",
        "127.0.0.1 notpypi.org",
        "127.0.0.1 org",
        "pypi.org",
        "127.0.0.1 example.com # not github.com",
    ],
)
async def test_other_names_are_none(line: str) -> None:
    assert await flags_of(HOSTS + line + "\n") == ()


@pytest.mark.parametrize(
    ("resolver", "flagged"),
    [
        ("nameserver 8.8.8.8\nsearch example.com\n", False),
        ("nameserver 127.0.0.11\noptions ndots:0\n", False),
        ("nameserver 127.0.0.1\n", True),
        ("nameserver  ::1", True),
        ("# nameserver 127.0.0.1\n", False),
    ],
)
async def test_a_loopback_name_server_is_a_flag(resolver: str, flagged: bool) -> None:
    assert bool(await flags_of(resolver=resolver)) is flagged
    assert await flags_of(resolver=resolver, routes=UNROUTED) == ()


async def test_where_the_engine_cannot_look_nothing_is_run() -> None:
    sandbox = sandbox_with("127.0.0.1 pypi.org\n")
    sandbox.capabilities = frozenset({Capability.CHANGES})
    assert await redirection_flags(sandbox) == ()
    assert sandbox.commands == []
