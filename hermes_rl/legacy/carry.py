"""Files between the sandbox and the host, where hermes-agent's tools run.

A tool that looks at a file gets a copy of the sandbox's; a file that a tool left in its cache is
copied into the sandbox, and the result names the copy.
"""

from __future__ import annotations

import os
import re
import stat
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from hermes_rl.errors import FileError
from hermes_rl.legacy.in_worker.home import CACHE_DIRECTORIES
from hermes_rl.legacy.safety import FILE_ARGUMENTS, is_web_address
from hermes_rl.tools.scope import ToolScope
from hermes_rl.types import JSONObject

__all__ = ["RESULT_FILES", "carried_in", "carried_out"]

RESULT_FILES = "/tmp/hermes-results/files"
MAX_FILE_BYTES = 20 << 20
MAX_FILES = 8
"""Copied for one result."""
_FILE_THREADS = 4
_INBOX = "cache/from-sandboxes"
_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}$")
_threads: RunVar[anyio.CapacityLimiter] = RunVar("hermes_rl.legacy.files")


def _limiter() -> anyio.CapacityLimiter:
    try:
        return _threads.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_FILE_THREADS)
        _threads.set(limiter)
        return limiter


@asynccontextmanager
async def carried_in(
    scope: ToolScope, home: str, tool: str, arguments: JSONObject
) -> AsyncIterator[JSONObject]:
    """Yield the arguments with the sandbox's file, if one is named, copied to the host.

    Raises:
        FileError: It cannot be read there, or has more than 20 MiB.
    """
    parameter = FILE_ARGUMENTS.get(tool, "")
    named = arguments.get(parameter)
    if not isinstance(named, str) or is_web_address(named) or named.startswith("data:"):
        yield arguments
        return
    path = await scope.shell.resolve(named.removeprefix("file://"))
    data = await scope.read(path, max_bytes=MAX_FILE_BYTES)
    suffix = _SUFFIX.search(path)
    copy = Path(home, _INBOX, uuid.uuid4().hex + (suffix[0] if suffix else ""))
    await anyio.to_thread.run_sync(_write, copy, data, limiter=_limiter())
    try:
        yield {**arguments, parameter: str(copy)}
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(_remove, copy, limiter=_limiter())


async def carried_out(scope: ToolScope, home: str, text: str) -> str:
    """Copy the cached files that ``text`` names into the sandbox; return it with their new paths.

    Files that are not there, are too large or cannot be written stay as they are named.
    """
    if home not in text:
        return text
    caches = "|".join(CACHE_DIRECTORIES)
    named = re.compile(re.escape(home) + rf"/(?:{caches})/[\w./-]*\w")
    for path in list(dict.fromkeys(named.findall(text)))[:MAX_FILES]:
        data = await anyio.to_thread.run_sync(_read_cached, home, path, limiter=_limiter())
        if data is None:
            continue
        copy = f"{RESULT_FILES}/{Path(path).name}"
        with suppress(FileError):
            await scope.write(copy, data)
            text = text.replace(path, copy)
    return text


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _read_cached(home: str, path: str) -> bytes | None:
    """Return a file of a cache; None for anything else, wherever the path really leads."""
    real = os.path.realpath(path)
    if not any(real.startswith(f"{os.path.realpath(home)}/{name}/") for name in CACHE_DIRECTORIES):
        return None
    try:
        with open(real, "rb", opener=_open_regular) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    return data if len(data) <= MAX_FILE_BYTES else None


def _open_regular(path: str, flags: int) -> int:
    """Open without waiting for the other end of a named pipe."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("no regular file")
    return descriptor
