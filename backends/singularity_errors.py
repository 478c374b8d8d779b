"""What Apptainer and Singularity print when something fails, and the error we raise for it.

:data:`TABLE` is read from the top; the first row whose text occurs in the complaint wins. The
texts are those of Apptainer 1.1 to 1.4 and SingularityCE 3.8 to 4.1, and of the registry client
inside both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    CreateError,
    ImageNotFound,
    RateLimited,
    SandboxError,
)

__all__ = ["TABLE", "Row", "last_complaint", "singularity_error"]

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FATAL = re.compile(r"(FATAL|ERROR) *:|Error for command")
_CHATTER = re.compile(r"(INFO|WARNING|VERBOSE|DEBUG) *:")

Make = Callable[[str], SandboxError]


@dataclass(slots=True, frozen=True)
class Row:
    """One row: ``text`` is a regular expression, searched for, case ignored."""

    text: str
    make: Make


def _no_namespaces(complaint: str) -> SandboxError:
    return BackendUnavailable(
        f"Unprivileged user namespaces are not allowed here ({complaint}). Allow them (sysctl "
        "user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
        "kernel.apparmor_restrict_unprivileged_userns=0), or have the setuid version installed "
        "(apptainer-suid) and set the backend option user_mode: default."
    )


def _no_mapping(complaint: str) -> SandboxError:
    return BackendUnavailable(
        f"fakeroot cannot be used here ({complaint}). Have ids given to you in /etc/subuid and "
        "/etc/subgid (usermod --add-subuids), or set the backend option user_mode: userns."
    )


def _disk_full(complaint: str) -> SandboxError:
    return Capacity(
        f"The disk is full: {complaint}. Make room, or point TMPDIR and XDG_CACHE_HOME at a "
        "larger one."
    )


def _rate_limited(complaint: str) -> SandboxError:
    return RateLimited(f"The registry refuses more pulls for now: {complaint}. Log in, or wait.")


def _no_image(complaint: str) -> SandboxError:
    return ImageNotFound(
        f"The image is not there, or not for you: {complaint}. Check its name and tag; for a "
        "private one log in first (apptainer registry login)."
    )


def _no_format(complaint: str) -> SandboxError:
    return CreateError(
        f"The image cannot be used: {complaint}. It must be a .sif file or an unpacked directory "
        "(apptainer build IMAGE.sif SOURCE), or be named as docker://IMAGE."
    )


def _unreachable(complaint: str) -> SandboxError:
    return BackendUnavailable(
        f"The pull failed, the image's registry cannot be reached: {complaint}. Check the network "
        "and http_proxy, or name a .sif file that was made elsewhere (apptainer pull)."
    )


def _no_limits(complaint: str) -> SandboxError:
    return BackendUnavailable(
        f"Limits cannot be set here ({complaint}): they need cgroups v2 with systemd, or root."
    )


def _too_old(complaint: str) -> SandboxError:
    return BackendUnavailable(
        f"The installed version is too old ({complaint}). Install Apptainer 1.1 or newer, or "
        "SingularityCE 3.8 or newer."
    )


def _failed(complaint: str) -> SandboxError:
    return CreateError(
        f"The container does not start: {complaint}. 'hermes_rl doctor singularity' says what "
        "works on this machine."
    )


TABLE: tuple[Row, ...] = (
    Row(r"no space left on device|disk quota exceeded", _disk_full),
    Row(r"toomanyrequests|too many requests", _rate_limited),
    Row(r"no mapping entry found in /etc/sub|could not use fakeroot|newuidmap", _no_mapping),
    Row(
        r"user ?namespaces?\b.*(disabled|not|fail|permission|allow)"
        r"|(fail|could ?n.t|not permitted).*\buser ?namespaces?"
        r"|max_user_namespaces|unprivileged_userns",
        _no_namespaces,
    ),
    Row(r"cgroup", _no_limits),
    Row(r"unknown (shorthand )?flag|flag provided but not defined", _too_old),
    Row(
        r"manifest.unknown|name.unknown|not found: manifest|repository .*not found"
        r"|requested access to the resource is denied|authentication required|unauthorized"
        r"|no such image|reference does not exist|could not parse reference"
        r"|archive file: open .*no such file"
        r"|failed to (resolve|retrieve) (path|source)|lstat .*no such file",
        _no_image,
    ),
    Row(
        r"image format not recognized|no library client"
        r"|doesn't exist in container|unable to handle .* uri",
        _no_format,
    ),
    Row(
        r"no such host|connection refused|i/o timeout|network is unreachable"
        r"|TLS handshake|server misbehaving|pinging container registry|dial tcp",
        _unreachable,
    ),
    Row(r"", _failed),
)


def last_complaint(stderr: bytes) -> str:
    """Return the last line that is no chatter, without colours and level; "" if there is none."""
    text = _COLOURS.sub("", stderr.decode("utf-8", "replace"))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if _FATAL.match(line)]
    telling = fatal or [line for line in lines if not _CHATTER.match(line)] or lines
    last = telling[-1] if telling else ""
    return re.sub(r"^(FATAL|ERROR) *: *", "", last)[:1000]


def singularity_error(stderr: bytes, *, otherwise: str = "it said nothing") -> SandboxError:
    """Return the typed error for what the program printed before it failed."""
    complaint = last_complaint(stderr) or otherwise
    row = next(row for row in TABLE if re.search(row.text, complaint, re.I))
    error = row.make(complaint)
    error.backend = "singularity"
    return error
