"""A plain client of a real outpost process over pipes, one frame at a time."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from hermes_rl.backends.outpost import outpost
from hermes_rl.backends.outpost.frames import (
    FrameParser,
    Kind,
    frame,
    pack_fields,
    pack_list,
    unpack_fields,
)

SOURCE = Path(outpost.__file__).read_text()
PATIENCE_S = 20.0
Frame = tuple[Kind, int, bytes]


class Wire:
    """Starts an outpost and speaks frames with it. Leaving closes its input and waits for it."""

    def __init__(
        self,
        *options: str,
        python: Sequence[str] = (sys.executable,),
        prelude: str = "",
        env: Mapping[str, str] | None = None,
        cwd: Path | str | None = None,
    ) -> None:
        self.process = subprocess.Popen(
            [*python, "-ISc", f"{prelude}exec({SOURCE!r})" if prelude else SOURCE, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            cwd=cwd,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin = self.process.stdin.fileno()
        self.stdout = self.process.stdout.fileno()
        self.parser = FrameParser()
        self.pending: list[Frame] = []
        self.ended = False
        self.ids = 0
        kind, _, payload = self.receive()
        assert kind == Kind.HELLO
        self.hello = unpack_fields(payload)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> int:
        """Close the input, wait for the end, return the exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()

    def send_bytes(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.stdin, view) :]

    def send(self, kind: Kind, id: int, payload: bytes = b"") -> None:
        self.send_bytes(frame(kind, id, payload))

    def receive(self, timeout_s: float = PATIENCE_S) -> Frame:
        """Return the next frame; fails at the end of the stream or when none comes."""
        end = time.monotonic() + timeout_s
        while not self.pending:
            ready, _, _ = select.select([self.stdout], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError("no frame came")
            data = os.read(self.stdout, 1 << 20)
            if not data:
                self.ended = True
                raise EOFError("the outpost closed the stream")
            self.pending += [(Kind(kind), id, body) for kind, id, body in self.parser.feed(data)]
        return self.pending.pop(0)

    def wait_for(self, kind: Kind, id: int) -> bytes:
        """Return the payload of the next frame of that kind and id, skipping others."""
        while True:
            found, found_id, payload = self.receive()
            if (found, found_id) == (kind, id):
                return payload

    def next_id(self) -> int:
        self.ids += 1
        return self.ids

    def start(self, cmd: str | Sequence[str], **options: bytes | str | int) -> int:
        """Send a run request and return its id."""
        id = self.next_id()
        fields: dict[str, bytes | str | int] = {"output": "keep", "limit": 100_000, **options}
        if isinstance(cmd, str):
            fields["cmd"] = cmd
        else:
            fields["argv"] = pack_list([item.encode() for item in cmd])
        self.send(Kind.RUN, id, pack_fields(fields))
        return id

    def result(self, id: int) -> dict[str, bytes]:
        """Return the result of a command, with kept output that came in frames of its own."""
        out, err = b"", b""
        while True:
            kind, found, payload = self.receive()
            if found != id:
                continue
            if kind == Kind.STDOUT:
                out += payload
            elif kind == Kind.STDERR:
                err += payload
            elif kind in (Kind.RESULT, Kind.FAILED):
                fields = unpack_fields(payload)
                fields["out"] = out + fields.get("out", b"")
                fields["err"] = err + fields.get("err", b"")
                return fields

    def run(self, cmd: str | Sequence[str], **options: bytes | str | int) -> dict[str, bytes]:
        return self.result(self.start(cmd, **options))

    def text(self, cmd: str | Sequence[str], **options: bytes | str | int) -> str:
        return self.run(cmd, **options)["out"].decode()

    def ping(self, payload: bytes = b"ping") -> None:
        """Check that the outpost still answers."""
        id = self.next_id()
        self.send(Kind.PING, id, payload)
        assert self.wait_for(Kind.PONG, id) == payload


def lives(pid: int) -> bool:
    """Tell whether a process lives and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_dead(*pids: int) -> None:
    """Wait a little until none of the processes lives."""
    end = time.monotonic() + PATIENCE_S
    while any(map(lives, pids)):
        assert time.monotonic() < end, "still alive"
        time.sleep(0.01)
