"""Traces of tampering: what an agent changed that decides how its own work is tested.

A verifier runs in the agent's sandbox with the programs it finds there. So before tests are
uploaded, what differs from the image (``Sandbox.changes()``) is compared with a list:

* shells, basic tools, curl, wget, apt on the ``PATH`` of the tests; the C library and its loader
* Python, pip, pytest and uv there
* files that steer these: ``/etc/ld.so.preload``, ``sitecustomize.py`` and other start-up files of
  Python, a pytest configuration in ``/``, other package sources of pip and uv, ``~/.curlrc``, and
  the scripts that set a ``PATH`` for tests

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
import csv
import hashlib
import heapq
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import anyio
import anyio.lowlevel
import anyio.to_thread

from hermes_rl.errors import FileError
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.sandbox import UNFINISHED_SEARCH, Capability, Change, Sandbox

__all__ = ["FLAG", "SUSPECTS", "tamper_flags"]

FLAG = "tamper_suspect"
"""Begins the text of every flag."""
MAX_CHECKED = 100
"""Listed paths that are looked at; the rest is flagged unseen. An upgrade of the system changes
some dozens."""
MAX_FLAGS = 200
SLICE = 500
"""Changes looked at between two steps of the event loop: about 2 ms."""
CHECKS_AT_ONCE = 8
"""Each reads files through the engine, which takes its time but little work of ours."""
MAX_PROGRAM_BYTES = 64 << 20
MAX_RECORD_BYTES = 16 << 20
"""Of dpkg's status file or a wheel's RECORD."""
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
_LIBRARIES = re.compile(r"(ld-linux[^/]*|libc|libdl|libpthread)\.so[\d.]*\Z")
_LIBRARY_PLACES = re.compile(r"/(usr/)?lib(32|64)?/")
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
"""Names of files that are harmless unless they name another source of packages."""
_REDIRECT = re.compile(rb"index|find[-_]links|://|proxy|target|prefix|config[-_]settings", re.I)
_PATH_SCRIPTS = ("/.local/bin/env", "/.cargo/env")
_OWN_BIN = rb"(\$HOME|/root|/home/[\w.-]+)/\.(local|cargo)/bin"
_PATH_LINE = re.compile(
    rb'\s*(#.*|case ":\$\{?PATH\}?:" in|\*:"?%s"?:\*\)|\*\)|;;|esac|'
    rb'(export )?PATH="?%s:\$\{?PATH\}?"?)?\s*' % (_OWN_BIN, _OWN_BIN)
)
"""Lines of a script that does nothing but put such a directory in front of ``PATH``."""
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
    rf"({'|'.join(map(re.escape, sorted(_FIXED)))})\Z|"
    rf"(?>.*/)(({_NAMES})\Z|{_PATTERNS})"
)
"""Matches every path that could be a flag, and others; for ``Sandbox.changes()``. It looks at the
last name only, without a way back: an agent chooses the paths. The name of ``_PATH_SCRIPTS`` is a
tool's."""
_hashing = LoopLimiter(2)
"""Programs are some megabytes; hashing frees the interpreter meanwhile."""


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
        or name in _SOURCES
        or path.endswith(_PATH_SCRIPTS)
        or bool(_START_UP.match(name) and _START_UP_PLACES.match(path))
        or bool(_LIBRARIES.match(name) and _LIBRARY_PLACES.match(path))
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
        if item.path.endswith(_PATH_SCRIPTS):
            return await self._reason_of_text(item.real, _sets_path_only, "does more than set PATH")
        if posixpath.basename(item.path) in _SOURCES:
            return await self._reason_of_text(
                item.real, lambda text: not _REDIRECT.search(text), "names a source of packages"
            )
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

    async def _reason_of_text(
        self, path: str, is_fine: Callable[[bytes], bool], otherwise: str
    ) -> str | None:
        text = await self._read(path)
        return None if text is not None and is_fine(text) else otherwise

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
        for line in (listed or b"").decode("utf-8", "replace").splitlines():
            digest, _, name = line.partition("  ")
            if f"/{name}" in _spellings(path):
                return digest
        return await self._conffile_md5(path)

    async def _conffile_md5(self, path: str) -> str | None:
        """Return the checksum of a configuration file, which only dpkg's status has."""
        if self._status is None:
            self._status = await self._read("/var/lib/dpkg/status", MAX_RECORD_BYTES) or b""
        found = re.search(rb"^ %s ([0-9a-f]{32})" % re.escape(path.encode()), self._status, re.M)
        return found[1].decode() if found else None

    async def _is_in_a_wheel(self, path: str, content: bytes) -> bool:
        """Say whether the RECORD of a newly installed wheel lists the file with this content."""
        said = base64.urlsafe_b64encode(await _digest("sha256", content)).rstrip(b"=").decode()
        for record in self._records_for(path)[:MAX_RECORDS]:
            site = posixpath.dirname(posixpath.dirname(record))
            data = await self._read(record, MAX_RECORD_BYTES) or b""
            for row in csv.reader(data.decode("utf-8", "replace").splitlines()):
                if len(row) > 1 and posixpath.normpath(posixpath.join(site, row[0])) == path:
                    return row[1] == f"sha256={said}"
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


def _sets_path_only(script: bytes) -> bool:
    return all(_PATH_LINE.fullmatch(line) for line in script.splitlines())


async def _digest(algorithm: str, content: bytes) -> bytes:
    def digest() -> bytes:
        return hashlib.new(algorithm, content, usedforsecurity=False).digest()

    return await anyio.to_thread.run_sync(digest, limiter=_hashing)
