"""Traces of tampering: what an agent changed that decides how its own work is tested.

A verifier runs in the agent's sandbox with the programs it finds there. So before tests are
uploaded, what differs from the image (``Sandbox.changes()``) is compared with a list:

* shells, basic tools, curl, wget, apt on the ``PATH`` of the tests; the C library, its loader and
  the libraries of these programs
* Python, pip, pytest and uv there
* files that steer these: ``/etc/ld.so.preload``, ``sitecustomize.py`` and other start-up files of
  Python, a pytest configuration in ``/``, ``~/.curlrc``, and those of :mod:`hermes_rl.steering`,
  which are judged by their contents

A path on the list that was added or changed is a flag, unless what is there now is what its
package has: a Debian package's checksum or a wheel's ``RECORD`` says the same, or it is a link to
the same program under a longer name. Python and uv may also be any compiled program: people
install them in many ways, and a shim is a script. An honest ``apt-get install curl`` or
``pip install uv`` is therefore no flag.

A flag is no proof, and its absence is none either: root in the sandbox can forge the package
database as well. See ``docs/verification.md`` for what is prevented, flagged, and neither.
"""

from __future__ import annotations

import base64
import hashlib
import heapq
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import anyio
import anyio.lowlevel
import anyio.to_thread

from hermes_rl.errors import FileError
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.package_records import conffile_md5, packaged_md5, recorded_hash
from hermes_rl.sandbox import UNFINISHED_SEARCH, Capability, Change, Sandbox
from hermes_rl.steering import PATTERN, steering_of

__all__ = ["FLAG", "SUSPECTS", "tamper_flags"]

FLAG = "tamper_suspect"
"""Begins the text of every flag."""
MAX_CHECKED = 300
"""Listed paths that are looked at; the rest is flagged unseen. An upgrade of the system changes
some dozens; one of every package in a Debian image 183."""
MAX_FLAGS = 300
SLICE = 500
"""Changes looked at between two steps of the event loop: about 2 ms."""
CHECKS_AT_ONCE = 8
"""Each reads files through the engine, which takes its time but little work of ours."""
MAX_PROGRAM_BYTES = 16 << 20
"""The largest on the list, Python and its library, have 9 MB. Each check holds one in memory."""
MAX_RECORD_BYTES = 16 << 20
"""Of dpkg's status file or a wheel's RECORD."""
MAX_STEERING_BYTES = 16 * 1024
"""Looked at on the event loop."""
MAX_RECORDS = 100
"""RECORDs read in search of one file."""
LOOK_TIMEOUT_S = 30.0
"""For one command that looks at the paths."""

_TOOL_NAMES = """
    apt apt-get basename bash busybox cat chgrp chmod chown cp curl cut dash date diff dirname
    dpkg dpkg-query echo env find getent git grep gzip head id install ln ls md5sum mkdir mktemp
    mv nohup od printenv printf readlink realpath rm sed seq sh sha256sum sleep sort stat su sudo
    tail tar tee test timeout touch tr true false uname uniq wc wget which xargs
"""
_INTERPRETERS = re.compile(r"(python[\d.]*|pypy[\d.]*|uv|uvx)\Z")
_SCRIPTS = re.compile(r"(pip[\d.]*|pytest|py\.test)\Z")
_LIBRARY_NAMES = """
    acl apt-pkg apt-private attr audit brotlicommon brotlidec bz2 c cap cap-ng com_err crypt crypto
    curl curl-gnutls dl expat ffi gcc_s gcrypt gmp gnutls gpg-error gssapi_krb5 hogweed idn2
    k5crypto keyutils krb5 krb5support lber-2.. ldap-2.. lz4 lzma m md nettle nghttp2 nghttp3
    ngtcp2 p11-kit pam pcre2-8 psl pthread resolv rt rtmp sasl2 selinux ssh2 ssl stdc.. systemd
    tasn1 tinfo udev unistring util uuid xxhash z zstd
"""
_LIBRARIES = re.compile(
    rf"(ld-linux[^/]*|lib({'|'.join(_LIBRARY_NAMES.split())}|nss_[^/]*|python3[^/]*))\.so[\d.]*\Z"
)
_LIBRARY_PLACES = re.compile(r"/(usr/)?lib(32|64)?/")
_LOCAL_LIBRARIES = re.compile(
    r"/usr/local/(?>.*/)lib"
    r"(acl|attr|c|cap|dl|m|nss_[^/]*|pcre2-8|pthread|rt|selinux|tinfo)\.so[\d.]*\Z"
)
"""The loader prefers this place. What else is built from source and installed there is honest."""
_START_UP = re.compile(r"(sitecustomize\.py|usercustomize\.py|[^/]+\.pth)\Z")
_START_UP_PLACES = re.compile(r"/usr/|/etc/python\d[^/]*/|.*/\.local/lib/python\d[^/]*/")
_FIXED_PATHS = """
    /conftest.py /etc/curlrc /etc/ld.so.preload /.pytest.ini /.pytest.toml /pyproject.toml
    /pytest.ini /pytest.toml /setup.cfg /setup.py /tox.ini
"""
_TOOLS = frozenset(_TOOL_NAMES.split())
_FIXED = frozenset(_FIXED_PATHS.split())
_OF_HOME = frozenset([".curlrc", ".wgetrc"])
_SOURCES = frozenset(["pip.conf", "uv.toml"])
"""Steering files that are so wherever they are."""
_PROJECTS = {"uvx": "uv", "py.test": "pytest"}
"""Projects of programs that are not named like them."""
_SHELLS = frozenset(["bash", "busybox", "dash"])
_ELF = "7f454c46"
_LOOK = r"""for path; do
magic=$(head -c 4 "$path" | od -An -tx1 | tr -d ' \n')
printf '%s\t%s\t%s\n' "$path" "$(readlink -f "$path")" "$magic"
done"""
_NAMES = "|".join(map(re.escape, sorted(_TOOLS | _OF_HOME | _SOURCES)))
_PATTERNS = "|".join(p.pattern for p in (_INTERPRETERS, _SCRIPTS, _LIBRARIES, _START_UP))
SUSPECTS = (
    rf"({'|'.join(map(re.escape, sorted(_FIXED)))})\Z|{PATTERN}|"
    rf"(?>.*/)(({_NAMES})\Z|{_PATTERNS})"
)
"""Matches every path that could be a flag, and others; for ``Sandbox.changes()``. It looks at the
last name only, without a way back: an agent chooses the paths. The name of ``_PATH_SCRIPTS`` is a
tool's."""
_hashing = LoopLimiter(2)
"""Programs are some megabytes; hashing frees the interpreter meanwhile. So are records."""
T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class _Seen:
    """What a listed path is now: where it leads, and the first four bytes there, as hex."""

    path: str
    real: str
    magic: str


async def tamper_flags(
    sandbox: Sandbox,
    changes: Sequence[Change],
    *,
    user: str | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return one flag per suspicious path, sorted; the last stands for all beyond MAX_FLAGS.

    Args:
        sandbox: The agent's sandbox, before tests are uploaded.
        changes: What ``sandbox.changes(suspects=SUSPECTS)`` said.
        user: Who the tests run as; None = the sandbox's user.
        env: Their declared environment.

    Raises:
        SandboxError: The sandbox failed.
    """
    possible = await _possible(changes)
    if not possible.paths:
        return ()
    home, directories = await _search_path(sandbox, user, env or {})
    suspects, count = await _listed(possible.paths, home, directories)
    checks = _Checks(sandbox, possible)
    flags = await checks.flags(suspects[:MAX_CHECKED])
    unseen = [f"{FLAG}: {path} (not looked at)" for path in suspects[MAX_CHECKED:]]
    more = count - len(suspects)
    rest = [f"{FLAG}: {more} more paths (not looked at)"] if more > 0 else []
    return tuple(sorted(flags + unseen) + rest)


@dataclass(slots=True, frozen=True)
class _Possible:
    """What of the changes the list is about.

    Attributes:
        written: All paths that were added or changed.
        paths: Those that could be on the list.
        records: RECORDs of wheels.
    """

    written: set[str]
    paths: set[str]
    records: set[str]


async def _possible(changes: Sequence[Change]) -> _Possible:
    """Sort the changes in slices: an agent may leave a million, and others share the loop."""
    found = _Possible(set(), set(), set())
    for start in range(0, len(changes), SLICE):
        for change in changes[start : start + SLICE]:
            if change.kind == "deleted":
                continue
            found.written.add(change.path)
            if change.path.endswith(".dist-info/RECORD"):
                found.records.add(change.path)
            elif _may_matter(change.path):
                found.paths.add(change.path)
        await anyio.lowlevel.checkpoint()
    return found


async def _listed(paths: set[str], home: str, directories: frozenset[str]) -> tuple[list[str], int]:
    """Return the first MAX_FLAGS paths on the list, sorted, and how many there are in all."""
    first: list[str] = []
    count = 0
    rest = iter(paths)
    while some := list(islice(rest, SLICE)):
        found = [path for path in some if _is_listed(path, home, directories)]
        count += len(found)
        first = heapq.nsmallest(MAX_FLAGS, first + found)
        await anyio.lowlevel.checkpoint()
    return first, count


def _may_matter(path: str) -> bool:
    """Say whether a path could be on the list, whatever ``PATH`` and ``HOME`` are."""
    name = posixpath.basename(path)
    return _is_program(name) or _is_steering(path) or name in _OF_HOME


def _is_program(name: str) -> bool:
    return name in _TOOLS or bool(_INTERPRETERS.match(name) or _SCRIPTS.match(name))


def _is_steering(path: str) -> bool:
    name = posixpath.basename(path)
    return (
        path in _FIXED
        or path == UNFINISHED_SEARCH
        or steering_of(path) is not None
        or bool(_START_UP.match(name) and _START_UP_PLACES.match(path))
        or bool(_LIBRARIES.match(name) and _LIBRARY_PLACES.match(path))
        or bool(_LOCAL_LIBRARIES.match(path))
    )


def _is_listed(path: str, home: str, directories: frozenset[str]) -> bool:
    directory, name = posixpath.split(path)
    if "\n" in path or "\t" in path:
        return False  # No name on the list holds one; a directory of PATH with one is not listed.
    if name in _OF_HOME:
        return directory == home
    return _is_steering(path) or (_is_program(name) and directory in directories)


async def _search_path(
    sandbox: Sandbox, user: str | None, env: Mapping[str, str]
) -> tuple[str, frozenset[str]]:
    """Return the home directory and where tests look for programs."""
    shown = await sandbox.exec(
        ["sh", "-c", 'printf "%s\\n%s" "$HOME" "$PATH"'],
        timeout_s=LOOK_TIMEOUT_S,
        session=None,
        env=env,
        user=user,
        trusted=_trusts(sandbox),
    )
    home, _, path = shown.text.partition("\n")
    home = home.rstrip("/") or "/root"
    usual = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    own = (f"{home}/.local/bin", f"{home}/.cargo/bin")
    return home, frozenset([*path.split(":"), *usual, *own])


def _trusts(sandbox: Sandbox) -> bool:
    return Capability.ENGINE_ACCESS in sandbox.capabilities


class _Checks:
    """Looks at listed paths in one sandbox."""

    def __init__(self, sandbox: Sandbox, possible: _Possible) -> None:
        self._sandbox = sandbox
        self._possible = possible
        self._status: bytes | None = None
        self._turns = anyio.Semaphore(CHECKS_AT_ONCE)

    async def flags(self, paths: Sequence[str]) -> list[str]:
        if not paths:
            return []
        seen = await self._look(paths)
        owners = await self._owners({item.real for item in seen})
        flags: list[str] = []

        async def check(item: _Seen) -> None:
            async with self._turns:
                reason = await self._reason(item, owners)
            if reason:
                flags.append(f"{FLAG}: {item.path} ({reason})")

        async with anyio.create_task_group() as group:
            for item in seen:
                group.start_soon(check, item)
        return flags

    async def _look(self, paths: Sequence[str]) -> list[_Seen]:
        """Find out where paths lead. One that the sandbox's tools do not show is taken as it is."""
        shown = await self._run(["sh", "-c", _LOOK, "sh", *paths])
        rows = (line.split("\t") for line in shown.splitlines())
        found = {row[0]: _Seen(*row) for row in rows if len(row) == 3 and row[1]}
        return [found.get(path, _Seen(path, path, "")) for path in paths]

    async def _run(self, argv: Sequence[str]) -> str:
        done = await self._sandbox.exec(
            argv,
            timeout_s=LOOK_TIMEOUT_S,
            session=None,
            cwd="/",
            max_output_bytes=MAX_CHECKED * 8192,
            trusted=_trusts(self._sandbox),
        )
        return done.text

    async def _reason(self, item: _Seen, owners: Mapping[str, str]) -> str | None:
        """Return why a listed path is suspicious, None if it is not."""
        if item.path == UNFINISHED_SEARCH:
            return "something in the sandbox kept it from its end"
        if item.path in _FIXED or posixpath.basename(item.path) in _OF_HOME:
            return "there is no honest reason to write it"
        if (steering := steering_of(item.path)) is not None:
            text = await self._read(item.real, MAX_STEERING_BYTES)
            if text is not None and steering.is_harmless(text):
                return None
            return None if await self._is_as_packaged(item.real, owners) else steering.otherwise
        if item.real != item.path and not _is_same_program(item.path, item.real):
            return f"leads to {item.real}"
        if item.real not in self._possible.written:
            return None
        name = posixpath.basename(item.path)
        if _INTERPRETERS.match(name) and item.magic == _ELF:
            return None
        if await self._is_as_packaged(item.real, owners):
            return None
        return "not what a package installs there"

    async def _read(self, path: str, max_bytes: int = MAX_PROGRAM_BYTES) -> bytes | None:
        """Read a file around the sandbox where the backend can; None if it cannot be read."""
        try:
            return await self._sandbox.read(
                path, max_bytes=max_bytes, trusted=_trusts(self._sandbox)
            )
        except FileError:
            return None

    # Packages

    async def _owners(self, paths: Iterable[str]) -> dict[str, str]:
        """Return the Debian package of each path that belongs to one."""
        spellings = {path: _spellings(path) for path in sorted(paths)}
        asked = [name for names in spellings.values() for name in names]
        by_name: dict[str, str] = {}
        for line in (await self._run(["dpkg-query", "-S", *asked])).splitlines():
            package, _, name = line.rpartition(": ")
            if package and not package.startswith("diversion "):
                by_name[name] = package.partition(",")[0]
        return {
            path: by_name[name]
            for path, names in spellings.items()
            for name in names
            if name in by_name
        }

    async def _is_as_packaged(self, path: str, owners: Mapping[str, str]) -> bool:
        content = await self._read(path)
        if content is None:
            return False
        if path in owners:
            said = await self._packaged_md5(path, owners[path])
            return said == (await _digest("md5", content)).hex()
        return await self._is_in_a_wheel(path, content)

    async def _packaged_md5(self, path: str, package: str) -> str | None:
        listed = await self._read(f"/var/lib/dpkg/info/{package}.md5sums", MAX_RECORD_BYTES)
        said = await _in_thread(packaged_md5, listed or b"", _spellings(path))
        if said is not None:
            return said
        if self._status is None:
            self._status = await self._read("/var/lib/dpkg/status", MAX_RECORD_BYTES) or b""
        return await _in_thread(conffile_md5, self._status, path)

    async def _is_in_a_wheel(self, path: str, content: bytes) -> bool:
        """Say whether the RECORD of a newly installed wheel lists the file with this content."""
        digest = base64.urlsafe_b64encode(await _digest("sha256", content)).rstrip(b"=").decode()
        for record in self._records_for(path)[:MAX_RECORDS]:
            site = posixpath.dirname(posixpath.dirname(record))
            data = await self._read(record, MAX_RECORD_BYTES) or b""
            said = await _in_thread(recorded_hash, data, site, path)
            if said is not None:
                return said == f"sha256={digest}"
        return False

    def _records_for(self, path: str) -> list[str]:
        """Return RECORDs among the changes that could list a path: named like it, or beside it."""
        directory, name = posixpath.split(path)
        project = _PROJECTS.get(name) or name.rstrip("0123456789.")
        found = []
        for record in sorted(self._possible.records):
            site, info = posixpath.split(posixpath.dirname(record))
            if site == directory or info.partition("-")[0] == project:
                found.append(record)
        return found


def _spellings(path: str) -> tuple[str, ...]:
    """Return a path with and without ``/usr``: packages name files as before the merge."""
    for directory in ("bin", "sbin", "lib", "lib32", "lib64"):
        if path.startswith(f"/usr/{directory}/"):
            return path, path.removeprefix("/usr")
        if path.startswith(f"/{directory}/"):
            return path, f"/usr{path}"
    return (path,)


def _is_same_program(path: str, real: str) -> bool:
    """Say whether a link keeps its word: ``python`` may lead to ``python3.12``, not to ``true``."""
    name, target = posixpath.basename(path), posixpath.basename(real)
    return target.startswith(name.rstrip("0123456789.")) or (name == "sh" and target in _SHELLS)


async def _digest(algorithm: str, content: bytes) -> bytes:
    def digest() -> bytes:
        return hashlib.new(algorithm, content, usedforsecurity=False).digest()

    return await _in_thread(digest)


async def _in_thread(work: Callable[..., T], *arguments: object) -> T:
    return await anyio.to_thread.run_sync(work, *arguments, limiter=_hashing)
