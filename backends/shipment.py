"""Our own interpreter, sent to where an outpost is to run and there is no python3.

What Docker mounts (:mod:`hermes_rl.backends.runtime`) is sent over the stream that the outpost
will use, once per sandbox at a cloud, once per host over ssh, and is kept there under a name made
from its contents. It brings its own C library and loader, so only the kind of processor must be
the same. :mod:`hermes_rl.backends.shipment_script` says what the other end needs.
"""

from __future__ import annotations

import gzip
import hashlib
import platform
import secrets
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from hermes_rl.backends.outpost.start import OutpostStart
from hermes_rl.backends.outpost.transport import Transport
from hermes_rl.backends.runtime import MANIFEST, Runtime, RuntimeImpossible, ensure_runtime
from hermes_rl.backends.shared_work import SharedWork
from hermes_rl.backends.shipment_script import SCRIPT, TOOLS
from hermes_rl.errors import BackendUnavailable, CreateError, SandboxError
from hermes_rl.loop_limiter import LoopLimiter

__all__ = [
    "NO_TERMINAL_EXIT_CODE",
    "Bundle",
    "InterpreterStock",
    "NotTaken",
    "Shipment",
    "TerminalMissing",
]

NO_TERMINAL_EXIT_CODE = 125
"""Of the typed command, where the terminal cannot be made a plain byte stream."""
PIECE_BYTES = 64 * 1024
LINE_BYTES = 4096
DELIVERY_LIMIT_S = 300.0
"""For some five megabytes; a line that needs longer is no use for sandboxes."""
_COMPRESSION = 6
_OPENING = (
    "printf %s \"$2\"; command -v head >/dev/null 2>&1 || { printf 'tools head\\n'; exit 3; }; "
    'eval "$(head -c "$1")"'
)
_RENAME = """
import os, sys
try:
    os.rename(*sys.argv[1:])
except OSError:
    sys.exit(9)
"""
_THREADS = LoopLimiter(1)
_REFUSALS = {
    "tools": "the shell there lacks programs to unpack it with (coreutils has them): {rest}",
    "machine": "the processor there is {rest}, and it runs on {machine} like this one only",
    "place": "no directory there takes a program and lets it run: {rest}",
    "write": "{rest} does not take it: the disk may be full",
    "torn": "it arrived damaged",
    "broken": "it does not run there (exit code {rest})",
}
_PASSING = ("write", "torn")
"""Refusals that another time there may be none of."""


class NotTaken(Exception):
    """The other end did not take the interpreter; the text says why, and what helps.

    Attributes:
        is_final: It will not take it another time either.
    """

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


class TerminalMissing(CreateError):
    """The shell where a shipment was to go has no stty to make its terminal a byte stream."""


@dataclass(slots=True, frozen=True)
class Bundle:
    """An interpreter directory as one piece: a table of its files, then their contents.

    Attributes:
        runtime: The directory.
        digest: SHA-256 of the whole, in hexadecimal.
        packed: The whole, compressed.
        plain_bytes: Its size.
        table_bytes: The table's, at its beginning.
    """

    runtime: Runtime
    digest: str
    packed: bytes
    plain_bytes: int
    table_bytes: int

    @classmethod
    def of(cls, runtime: Runtime) -> Bundle:
        """Read and compress a directory; takes most of a second.

        Raises:
            OSError: It cannot be read.
        RuntimeImpossible: A file in it cannot be named.
        """
        files = dict(sorted(_files(runtime)))
        table = "".join(_line(name, path) for name, path in files.items()).encode("ascii")
        whole = table + b"".join(path.read_bytes() for path in files.values())
        return cls(
            runtime=runtime,
            digest=hashlib.sha256(whole).hexdigest(),
            packed=gzip.compress(whole, _COMPRESSION, mtime=0),
            plain_bytes=len(whole),
            table_bytes=len(table),
        )

    @property
    def name(self) -> str:
        """What the directory is called elsewhere."""
        return f"runtime-{self.digest[:24]}"


def _files(runtime: Runtime) -> Iterator[tuple[str, Path]]:
    """Yield names and files; compiled modules take their sources' place, which nobody reads."""
    top = runtime.path
    for path in filter(Path.is_file, top.rglob("*")):
        compiled = path.parent.parent / f"{path.name.partition('.')[0]}.pyc"
        if path.parent.name == "__pycache__":
            yield str(compiled.relative_to(top)), path
        elif path.suffix != ".py" and path.name != MANIFEST:
            yield str(path.relative_to(top)), path


def _line(name: str, path: Path) -> str:
    info = path.stat()
    if name.split() != [name]:
        raise RuntimeImpossible(f"a file's name has a space in it: {name!r}")
    return f"{info.st_size} {'x' if info.st_mode & 0o100 else 'r'} {name}\n"


class InterpreterStock:
    """Builds the bundle when the first place needs it, and keeps it.

    A build that fails does so for all who wait for it; the next who asks tries again.

    Args:
        cache_dir: Where interpreter directories are kept here.
        tasks: It is built in it.
    """

    def __init__(self, cache_dir: Path, tasks: TaskGroup) -> None:
        self._cache_dir = cache_dir
        self._shared: SharedWork[Bundle] = SharedWork(tasks)

    async def bundle(self) -> Bundle:
        """Return it.

        Raises:
            NotTaken: There is none: we do not run on Linux, say.
        """
        try:
            return await self._shared.get("the interpreter", self._build)
        except SandboxError as error:
            is_final = isinstance(error, RuntimeImpossible)
            raise NotTaken(str(error), is_final=is_final) from error

    async def _build(self) -> Bundle:
        runtime = await ensure_runtime(self._cache_dir)
        try:
            return await anyio.to_thread.run_sync(Bundle.of, runtime, limiter=_THREADS)
        except OSError as error:
            raise BackendUnavailable(f"{runtime.path} cannot be read: {error}") from error


@dataclass(slots=True, frozen=True)
class Shipment:
    """One delivery: what to run at the other end, then what to say to it.

    Attributes:
        bundle: What is sent.
        places: Directories for it, best first, each a word of the shell's.
        start: The outpost to start there over the same stream; None = nothing.
        mark: Written by the other end before anything else.
    """

    bundle: Bundle
    places: Sequence[str]
    start: OutpostStart | None = None
    mark: str = ""
    scratch: str = field(default_factory=lambda: f".runtime-{secrets.token_hex(8)}")
    """Name of the directory that it is unpacked in."""

    @property
    def preamble(self) -> bytes:
        """What is sent first: the script."""
        bundle = self.bundle
        values = {
            "tools": " ".join(TOOLS),
            "machine": platform.machine(),
            "name": bundle.name,
            "loader": bundle.runtime.loader,
            "digest": bundle.digest,
            "table_bytes": bundle.table_bytes,
            "packed_bytes": len(bundle.packed),
            "plain_bytes": bundle.plain_bytes,
            "scratch_name": self.scratch,
            "rename": _RENAME,
        }
        lines = [f"{name}={shlex.quote(str(value))}" for name, value in values.items()]
        lines += [f"set -- {' '.join(self.places)}", SCRIPT]
        return "\n".join([*lines, *self._program()]).encode() + b"\n"

    def _program(self) -> list[str]:
        if self.start is None:
            return []
        words = [shlex.quote(word) for word in self.start.program]
        interpreter = " ".join(f'"{word}"' for word in self.bundle.runtime.interpreter("$target"))
        where = shlex.quote(self.start.workdir or "")
        return [
            f'where={where}; [ -z "$where" ] || {{ mkdir -p "$where" && cd "$where"; }} || exit 1',
            f"exec {interpreter} {' '.join(words)}",
        ]

    def argv(self) -> list[str]:
        """Return the command to run on pipes."""
        return ["/bin/sh", "-c", _OPENING, "sh", str(len(self.preamble)), self.mark]

    def command_line(self) -> str:
        """Return the same for a login shell of any kind."""
        return f"exec {shlex.join(self.argv())}"

    def typed(self, mark: str) -> str:
        """Return the line for a shell on a terminal; see :meth:`OutpostStart.typed`."""
        shown = mark[::-1]
        raw = f"stty raw -echo -iexten && printf %s%s {shown[:4]} {shown[4:]}"
        started = f"exec {shlex.join(self.argv())} 2>/dev/null"
        return f" {{ {raw}; }} 2>/dev/null && {started} || exit {NO_TERMINAL_EXIT_CODE}\n"

    @property
    def typed_preamble(self) -> bytes:
        """What is sent first on a terminal: the script."""
        return self.preamble

    async def deliver(self, stream: Transport) -> str:
        """Send what is asked for until it is there; return its directory.

        The script (:attr:`preamble`) has been sent. Afterwards the other end waits for the
        outpost's own preamble, if one is to be started.

        Raises:
            NotTaken: It was not taken.
        """
        try:
            with anyio.fail_after(DELIVERY_LIMIT_S):
                word, rest = await _answer(stream)
                if word == "send":
                    word, rest = await self._send(stream, rest)
        except TimeoutError:
            raise NotTaken(
                f"it was not there within {DELIVERY_LIMIT_S:g} s", is_final=False
            ) from None
        if word != "done":
            raise _refusal(word, rest)
        return rest

    async def _send(self, stream: Transport, form: str) -> tuple[str, str]:
        data = self.bundle.packed
        if form != "gzip":
            data = await anyio.to_thread.run_sync(gzip.decompress, data, limiter=_THREADS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_send_all, stream, data)
            answer = await _answer(stream)
            tasks.cancel_scope.cancel()
        return answer


async def _send_all(stream: Transport, data: bytes) -> None:
    try:
        for start in range(0, len(data), PIECE_BYTES):
            await stream.send(data[start : start + PIECE_BYTES])
    except OSError:
        return  # whoever reads the answer learns of it too


async def _answer(stream: Transport) -> tuple[str, str]:
    """Return the next line's first word, and the rest."""
    line = b""
    try:
        while not line.endswith(b"\n"):
            piece = await stream.receive()
            line += piece
            if not piece or len(line) > LINE_BYTES:
                raise NotTaken("the shell there ended without an answer", is_final=False)
    except OSError as error:
        raise NotTaken(f"the connection broke ({error})", is_final=False) from error
    word, _, rest = line.decode("utf-8", "replace").strip().partition(" ")
    return word, rest


def _refusal(word: str, rest: str) -> NotTaken:
    text = _REFUSALS.get(word, "the shell there answers {word}")
    message = text.format(word=word, rest=rest, machine=platform.machine())
    return NotTaken(message, is_final=word not in _PASSING)
