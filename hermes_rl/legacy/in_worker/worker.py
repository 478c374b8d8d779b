"""The program of a worker process.

It reads CALL, CANCEL, END and STOP frames from standard input and writes READY or FAILED, RESULT
and ENDED frames to standard output. Tools that print write to a log in the private directory.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO

from .calls import Calls
from .frames import Kind, pack, read_frame
from .hermes import Hermes
from .home import make_home, set_environment
from .keeper import LOG_NAME, keep
from .threads import BoundedThreads

__all__ = ["main", "survey"]

MAX_LOG_BYTES = 16 << 20
"""The log starts anew beyond it; looked at with every frame."""


def main(argument: str) -> None:
    """Serve or probe, as the JSON text ``argument`` says; under a keeper."""
    settings = json.loads(argument)
    mode = {"serve": _serve, "probe": _probe}[settings["mode"]]
    keep(lambda directory: mode(settings, directory))


def _load(settings: dict[str, Any], directory: Path) -> Hermes:
    """Import hermes-agent in its private home.

    Raises:
        Exception: Whatever keeps it from being imported.
    """
    source = settings.get("home")
    temporary = directory / "tmp"
    temporary.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(temporary)
    home = directory / "home"
    set_environment(os.environ, home)
    make_home(home, Path(source) if source else None)
    os.chdir(directory)
    return Hermes(home)


class _Streams:
    """The two frame streams; 0, 1 and 2 belong to the tools from here on."""

    def __init__(self, log: Path) -> None:
        self.input: BinaryIO = os.fdopen(os.dup(0), "rb")
        self._output = os.dup(1)
        self._lock = threading.Lock()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(self._log, 1)
        os.dup2(self._log, 2)

    def send(self, kind: Kind, id: int, payload: bytes) -> None:
        """Write a frame, from any thread; the engine may be gone."""
        self.write(pack(kind, id, payload))

    def write(self, data: bytes) -> None:
        """Write bytes to what was standard output."""
        view = memoryview(data)
        with self._lock:
            try:
                while view:
                    view = view[os.write(self._output, view) :]
            except BrokenPipeError:
                return

    def bound_log(self) -> None:
        """Empty the log if it has grown too long."""
        if os.fstat(self._log).st_size > MAX_LOG_BYTES:
            os.ftruncate(self._log, 0)


def _serve(settings: dict[str, Any], directory: Path) -> None:
    streams = _Streams(directory / LOG_NAME)
    try:
        hermes = _load(settings, directory)
    except Exception as error:  # Told, in one sentence, to whoever configured it.
        streams.send(Kind.FAILED, 0, json.dumps({"error": _reason(error)}).encode())
        raise SystemExit(2) from error
    calls = Calls(hermes, BoundedThreads(settings["threads"], "hermes-tool"), streams.send)
    streams.send(Kind.READY, 0, json.dumps({"home": str(hermes.home)}).encode())
    try:
        _read(streams, calls)
    finally:
        calls.stop()
        os._exit(0)  # Exit hooks of the tools may take longer than anyone waits.


def _read(streams: _Streams, calls: Calls) -> None:
    while (frame := read_frame(streams.input.read)) is not None:
        if frame.kind == Kind.CALL:
            calls.start(frame.id, json.loads(frame.payload))
        elif frame.kind == Kind.CANCEL:
            calls.cancel(frame.id)
        elif frame.kind == Kind.END:
            calls.end(frame.id, json.loads(frame.payload)["task"])
        elif frame.kind == Kind.STOP:
            return
        streams.bound_log()


def _probe(settings: dict[str, Any], directory: Path) -> None:
    """Write what is installed and usable, as JSON."""
    streams = _Streams(directory / LOG_NAME)
    try:
        hermes = _load(settings, directory)
        answer = survey(hermes, settings["known"], settings["wanted"])
    except Exception as error:
        streams.write(json.dumps({"error": _reason(error)}).encode())
        raise SystemExit(2) from error
    streams.write(json.dumps(answer).encode())
    os._exit(0)


def survey(hermes: Hermes, known: list[str], wanted: list[str]) -> dict[str, Any]:
    """Return the version, the usable tools, and what the others need.

    Args:
        hermes: The imported hermes-agent.
        known: Names of tools that are not to be listed as somebody's own.
        wanted: Names of tools to say more about.
    """
    own = {
        toolset: [name for name in names if name not in known]
        for toolset, names in hermes.toolsets().items()
    }
    own = {toolset: names for toolset, names in own.items() if names}
    names = [*wanted, *(name for names in own.values() for name in names)]
    return {
        "version": hermes.version,
        "definitions": hermes.definitions(names),
        "toolsets": own,
        "requirements": hermes.requirements(names),
    }


def _reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"hermes-agent is not installed there: {error}"
    return f"{type(error).__name__}: {error}"
