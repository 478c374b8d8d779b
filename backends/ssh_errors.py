"""What can go wrong on the way to a host, as our errors.

=============================  =====================  ==========================================
what happened                  error                  the fix it names
=============================  =====================  ==========================================
host key not in known_hosts    ConfigError            the fingerprint, and how to add it
another key in known_hosts     ConfigError            both possible reasons, how to replace it
host key revoked               ConfigError            ask the host's owner
login refused                  ConfigError            user, keys that were tried, authorized_keys
key or configuration unusable  ConfigError            the file
no answer in time              BackendUnavailable     host, port, firewall
refused, unknown name, no way  BackendUnavailable     host, port, sshd
closed while logging in        BackendUnavailable     MaxStartups, denied addresses
no common algorithm            BackendUnavailable     what asyncssh says
no session                     BackendUnavailable     MaxSessions, forced commands
=============================  =====================  ==========================================
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import asyncssh

from hermes_rl.backends.ssh_options import SSHAddress
from hermes_rl.errors import BackendUnavailable, ConfigError, HermesRLError

__all__ = ["PresentedKey", "connect_error", "session_error"]


@dataclass(slots=True, frozen=True)
class PresentedKey:
    """A host key that is not trusted.

    Attributes:
        host: Whose, after the ssh configuration was asked.
        port: The same.
        algorithm: Its kind, as known_hosts spells it.
        fingerprint: As ssh prints it.
        has_other: The known hosts have another key for this host.
        place: The file that was asked.
    """

    host: str
    port: int
    algorithm: str
    fingerprint: str
    has_other: bool
    place: Path


def connect_error(
    error: Exception,
    *,
    host: SSHAddress,
    user: str,
    keys: Sequence[str],
    shown: PresentedKey | None,
) -> HermesRLError:
    """Return our error for what ``asyncssh.connect`` raised.

    Args:
        error: What it raised.
        host: Where to.
        user: The user name that was tried.
        keys: Key files that were tried.
        shown: The key the host showed, if that was the trouble.
    """
    if isinstance(error, asyncssh.HostKeyNotVerifiable):
        return ConfigError(_distrust(host, shown, str(error)))
    if isinstance(error, asyncssh.PermissionDenied):
        tried = ", ".join(keys) or "the agent's and ~/.ssh/id_*"
        return ConfigError(
            f"{host} refused to log in {user!r} (keys: {tried}). Check the user, and that a public "
            "key of yours is in its ~/.ssh/authorized_keys there; keys with a passphrase need "
            "ssh-agent."
        )
    if isinstance(error, asyncssh.KeyImportError | asyncssh.ConfigParseError):
        return ConfigError(f"{host}: a key or ssh configuration file cannot be used: {error}.")
    return BackendUnavailable(f"{host} {_failure(error)}", backend="ssh")


def _distrust(host: SSHAddress, shown: PresentedKey | None, said: str) -> str:
    if shown is None:
        return f"The host key of {host} is not trusted: {said}."
    port = "" if shown.port == 22 else f"-p {shown.port} "
    name = shown.host if shown.port == 22 else f"[{shown.host}]:{shown.port}"
    key = f"its {shown.algorithm} key has the fingerprint {shown.fingerprint}"
    if shown.has_other:
        return (
            f"The host key of {host} is another than {shown.place} knows: {key}. Either the host "
            "was set up anew, or someone stands between. If you are sure of the former: "
            f"ssh-keygen -f {shown.place} -R '{name}', then add the new key."
        )
    return (
        f"The host key of {host} is not known: {key}. Compare it with the host's, then: "
        f"ssh-keyscan {port}{shown.host} >> {shown.place}"
    )


def _failure(error: Exception) -> str:
    said = str(error).rstrip(".") or type(error).__name__
    if isinstance(error, TimeoutError):
        return "does not answer. Check its name and port, and that no firewall is between."
    if isinstance(error, socket.gaierror):
        return f"is no name that can be looked up ({said}). Check its spelling."
    if isinstance(error, OSError):
        return f"cannot be reached ({said}). Check its name and port, and that sshd runs there."
    if isinstance(error, asyncssh.KeyExchangeFailed):
        return (
            f"and this end have no algorithm in common ({said}). If it is about host keys: "
            "known_hosts may hold a key of a kind that the host has no longer."
        )
    return (
        f"closed the connection while logging in ({said}). It may have too many at once (sshd's "
        "MaxStartups), or refuse this address."
    )


def session_error(error: Exception, *, host: SSHAddress) -> BackendUnavailable:
    """Return our error where a fresh connection gives no session at all."""
    return BackendUnavailable(
        f"{host} opens no session ({error}). Check sshd's MaxSessions, and that the login is not "
        "restricted to something else (ForceCommand, a command= in authorized_keys).",
        backend="ssh",
    )
