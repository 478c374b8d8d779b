"""Names that were made to lead elsewhere: a trace of tampering that no list of changes shows.

Verifiers download what they run. An agent that is root can serve the same names itself: with an
entry in ``/etc/hosts``, or a name server of its own, and a certificate that it has made trusted.
Container engines mount both files, so they are not among ``Sandbox.changes()``.

A flag is: a package server's name in ``/etc/hosts``; a loopback name server in
``/etc/resolv.conf``, unless it is the engine's own or there is no network anyway (engines leave
those out when they copy the host's file into a sandbox with a network); no name server there,
because resolvers then ask the machine they run on (tried with glibc; engines put in one of their
own choice where the host has none); files that could not be looked at.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

from hermes_rl.sandbox import Capability, Sandbox
from hermes_rl.tamper import FLAG

__all__ = ["redirection_flags"]

LOOK_TIMEOUT_S = 30.0
MAX_BYTES = 256 * 1024
MAX_SHOWN = 100
"""Characters of a line in a flag."""
_SERVER_NAMES = """
    alpinelinux.org anaconda.org astral.sh crates.io debian.org docker.com docker.io github.com
    githubusercontent.com golang.org huggingface.co nodejs.org nodesource.com npmjs.com npmjs.org
    pypa.io pypi.org pythonhosted.org rubygems.org rust-lang.org rustup.rs ubuntu.com yarnpkg.com
"""
_SERVERS = frozenset(_SERVER_NAMES.split())
_SERVER = re.compile(r"nameserver[ \t]+([^ \t\0]+)")
"""At the beginning of a line; whatever follows the address is ignored."""
_ENGINES_NAME_SERVER = "127.0.0.11"
_LOOK = """
set -e
cat /etc/hosts; echo; echo "$1"
cat /etc/resolv.conf; echo; echo "$1"
cat /proc/net/route
"""
"""The parts are told apart by a mark that no file can have been prepared for."""
_FILES = "/etc/hosts or /etc/resolv.conf"


async def redirection_flags(sandbox: Sandbox) -> tuple[str, ...]:
    """Return a flag per line that leads a name elsewhere; none where the engine cannot look.

    Raises:
        SandboxError: The sandbox failed.
    """
    if Capability.ENGINE_ACCESS not in sandbox.capabilities:
        return ()
    mark = secrets.token_hex()
    shown = await sandbox.exec(
        ["sh", "-c", _LOOK, "sh", mark],
        timeout_s=LOOK_TIMEOUT_S,
        session=None,
        cwd="/",
        max_output_bytes=MAX_BYTES,
        trusted=True,
    )
    hosts, first, rest = shown.stdout.decode("utf-8", "replace").partition(f"{mark}\n")
    resolver, second, routes = rest.partition(f"{mark}\n")
    lines = [f"/etc/hosts ({line})" for line in _redirected(hosts)]
    if _has_network(routes):
        lines += [f"/etc/resolv.conf ({line})" for line in _own_servers(resolver)]
    if shown.stdout_total > len(shown.stdout):
        lines.append(f"{_FILES} (too long to be honest)")
    elif shown.exit_code != 0 or shown.timed_out or not (first and second and routes):
        lines.append(f"{_FILES} (could not be looked at)")
    return tuple(f"{FLAG}: {line}" for line in lines)


def _redirected(hosts: str) -> Iterator[str]:
    for line in hosts.split("\n"):
        names = line.partition("#")[0].lower().split()[1:]
        if any(_is_package_server(name.rstrip(".")) for name in names):
            yield line.strip()[:MAX_SHOWN]


def _is_package_server(name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[n:]) in _SERVERS for n in range(len(parts) - 1))


def _own_servers(resolver: str) -> Iterator[str]:
    """Find what makes the sandbox its own name server, reading lines as resolvers do."""
    asked = 0
    for line in resolver.split("\n"):
        found = _SERVER.match(line)
        if found is None:
            continue
        if _is_loopback(found[1]):
            yield line.strip()[:MAX_SHOWN]
        asked += _parsed(found[1].partition("%")[0]) is not None
    if not asked:
        yield "no name server: this sandbox is asked"


def _is_loopback(address: str) -> bool:
    if address == _ENGINES_NAME_SERVER:
        return False
    parsed = _parsed(address.partition("%")[0])
    if parsed is None:
        return address.startswith("127.")
    return parsed.is_loopback or parsed.is_unspecified


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    """Read an address as resolvers do, which also know ``127.1`` and ``0177.0.0.1``."""
    try:
        return IPv4Address(socket.inet_aton(address))
    except (OSError, ValueError):
        pass
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _has_network(routes: str) -> bool:
    """Say whether /proc/net/route has a route besides its heading."""
    return len(routes.split("\n")) > 2
