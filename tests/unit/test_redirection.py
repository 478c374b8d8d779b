"""Names that lead elsewhere, without a container; in one: tests/integration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

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


class Looked(FakeSandbox):
    """Answers only what goes around the processes inside."""

    async def exec(self, cmd: str | Sequence[str], **options: Any) -> ExecResult:
        assert options["trusted"] is True
        assert options["session"] is None
        return await super().exec(cmd, **options)


def sandbox_that(answer: Callable[[str | Sequence[str]], ExecResult]) -> FakeSandbox:
    sandbox = Looked(run=answer)
    sandbox.capabilities = frozenset({Capability.ENGINE_ACCESS})
    return sandbox


SERVER = "nameserver 8.8.8.8\n"


def sandbox_with(hosts: str, resolver: str = SERVER, routes: str = ROUTED) -> FakeSandbox:
    """A sandbox that answers as cat would."""

    def answer(command: str | Sequence[str]) -> ExecResult:
        text = f"\n{command[-1]}\n".join([hosts, resolver, routes])
        return ExecResult(exit_code=0, stdout=text.encode(), stdout_total=len(text.encode()))

    return sandbox_that(answer)


async def flags_of(
    hosts: str = HOSTS, resolver: str = SERVER, routes: str = ROUTED
) -> Sequence[str]:
    return await redirection_flags(sandbox_with(hosts, resolver, routes))


@pytest.mark.parametrize(
    "line",
    [
        "127.0.0.1 astral.sh",
        "10.0.0.1\tmirror.local files.pythonhosted.org",
        "::1 deb.debian.org",
        "127.0.0.1 PyPI.org.",
        "127.0.0.1 raw.githubusercontent.com # a comment",
        "127.0.0.1\rpypi.org",
        "127.0.0.1\vpypi.org",
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
        ("nameserver 0:0:0:0:0:0:0:1\n", True),
        ("nameserver ::1%lo\n", True),
        ("nameserver ::ffff:127.0.0.1\n", True),
        ("nameserver ::FFFF:7f00:0001\n", True),
        ("nameserver ::ffff:0.0.0.0\n", True),
        ("nameserver ::\n", True),
        ("nameserver 0.0.0.0\n", True),
        ("nameserver 127.1\n", True),
        ("nameserver 0177.0.0.1\n", True),
        ("nameserver 127.x\n", True),
        ("nameserver fe80::1%eth0\n", False),
        ("nameserver ::ffff:8.8.8.8\n", False),
        ("nameserver\t8.8.8.8 # ours\n", False),
        (f"# nameserver 127.0.0.1\n{SERVER}", False),
        (f" nameserver 127.0.0.1\n{SERVER}", False),
        (f"nameserver 127.0.0.1\0\n{SERVER}", True),
    ],
)
async def test_a_loopback_name_server_is_a_flag(resolver: str, flagged: bool) -> None:
    assert bool(await flags_of(resolver=resolver)) is flagged
    assert await flags_of(resolver=resolver, routes=UNROUTED) == ()


@pytest.mark.parametrize(
    "resolver",
    [
        "",
        "search example.com\n",
        "# nameserver 8.8.8.8\n",
        " nameserver 8.8.8.8\n",
        "x\rnameserver 8.8.8.8\n",
        "nameserver\n",
        "nameserver8.8.8.8\n",
        "nameserver example.com\n",
        "nameserver 8.8.8.8x\n",
        "nameserver \0 8.8.8.8\n",
    ],
)
async def test_no_name_server_is_a_flag_because_the_sandbox_itself_is_asked(resolver: str) -> None:
    (flag,) = await flags_of(resolver=resolver)
    assert flag == "tamper_suspect: /etc/resolv.conf (no name server: this sandbox is asked)"
    assert await flags_of(resolver=resolver, routes=UNROUTED) == ()


async def test_where_the_engine_cannot_look_nothing_is_run() -> None:
    sandbox = sandbox_with("127.0.0.1 pypi.org\n")
    sandbox.capabilities = frozenset({Capability.CHANGES})
    assert await redirection_flags(sandbox) == ()
    assert sandbox.commands == []


async def answered(text: str, **fields: Any) -> Sequence[str]:
    """Flags where the look says ``text``; MARK in it stands for the mark."""

    def answer(command: str | Sequence[str]) -> ExecResult:
        stdout = text.replace("MARK", command[-1]).encode()
        result = ExecResult(exit_code=0, stdout=stdout, stdout_total=len(stdout))
        return replace(result, **fields)

    return await redirection_flags(sandbox_that(answer))


WHOLE = f"{HOSTS}\nMARK\nnameserver 8.8.8.8\n\nMARK\n{ROUTED}"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", {}),
        (HOSTS, {}),
        (f"{HOSTS}\nMARK\n", {}),
        (f"{HOSTS}\nMARK\n\nMARK\n", {}),
        (WHOLE, {"exit_code": 1}),
        ("", {"exit_code": 127}),
        (WHOLE, {"exit_code": 124, "timed_out": True}),
    ],
)
async def test_a_look_that_came_to_nothing_is_a_flag(text: str, fields: dict[str, Any]) -> None:
    (flag,) = await answered(text, **fields)
    assert flag == "tamper_suspect: /etc/hosts or /etc/resolv.conf (could not be looked at)"


async def test_files_that_are_too_long_are_a_flag_and_a_whole_answer_is_none() -> None:
    assert await answered(WHOLE) == ()
    (flag,) = await answered(WHOLE, stdout_total=1 << 20)
    assert flag == "tamper_suspect: /etc/hosts or /etc/resolv.conf (too long to be honest)"
