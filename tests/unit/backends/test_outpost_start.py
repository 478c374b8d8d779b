"""Starting an outpost with an interpreter that is already there: real processes, real terminals."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes_rl.backends.outpost.frames import FrameParser, Kind, frame, unpack_fields
from hermes_rl.backends.outpost.start import OutpostStart, outpost_options

LONG = "v" * 200_000
"""More than an argument may have."""
LONGEST_TYPED = 1000
"""busybox's shell takes 1024 characters."""


@contextmanager
def started(start: OutpostStart, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        start.argv(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options
    )
    try:
        yield process
    finally:
        process.communicate(timeout=20)


def first_frame(fd: int) -> tuple[int, dict[str, bytes]]:
    parser = FrameParser()
    while True:
        for kind, _, payload in parser.feed(os.read(fd, 65536)):
            return kind, unpack_fields(payload)


def test_it_speaks_and_starts_where_it_is_told(tmp_path: Path) -> None:
    options = outpost_options(lease_s=60, env={"KEY": LONG}, user=None)
    start = OutpostStart.of(options, workdir=str(tmp_path / "made" / "for it"))
    with started(start) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(start.preamble)
        process.stdin.flush()
        kind, hello = first_frame(process.stdout.fileno())
        assert kind == Kind.HELLO
        assert hello["cwd"] == os.fsencode(tmp_path / "made" / "for it")
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert b"vvvv" not in shown
        assert len(shown) < 4096
    assert process.returncode == 0


def test_without_python_it_ends_with_127(tmp_path: Path) -> None:
    (tmp_path / "mkdir").symlink_to("/bin/mkdir")
    with started(OutpostStart.of([]), env={"PATH": str(tmp_path)}) as process:
        pass
    assert process.returncode == 127


def test_a_variable_that_no_process_can_have_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        OutpostStart.of(outpost_options(lease_s=1, env={"A": "b\0c"}))


def test_it_ends_when_it_hears_nothing() -> None:
    start = OutpostStart.of(outpost_options(lease_s=60, silence_s=0.5))
    with started(start) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(start.preamble + frame(Kind.PING, 1))
        process.stdin.flush()
        frames = list(FrameParser().feed(process.stdout.read()))
        assert [kind for kind, _, _ in frames] == [Kind.HELLO, Kind.PONG, Kind.BYE]
        assert frames[-1][2] == b"silence"


@pytest.mark.parametrize("shell", ["bash", "sh", "busybox sh"])
def test_on_a_terminal_every_byte_passes_after_the_mark(shell: str) -> None:
    if not shutil.which(shell.split()[0]):
        pytest.skip(f"no {shell}")
    start = OutpostStart.of(outpost_options(lease_s=60), workdir="/tmp")
    assert len(start.typed("abc123x")) < LONGEST_TYPED
    pid, master = pty.fork()
    if pid == 0:
        os.execvp(shell.split()[0], [*shell.split(), "-i"])
    try:
        os.write(master, start.typed("abc123x").encode())
        seen = b""
        while b"x321cba" not in seen:
            seen += os.read(master, 65536)
        for at in range(0, len(start.typed_preamble), 1024):
            os.write(master, start.typed_preamble[at : at + 1024])
        parser = FrameParser()
        echo = frame(Kind.PING, 0x0D0A0311) + frame(Kind.PING, 0x04130A1A)
        os.write(master, echo)
        ids: list[int] = []
        while len(ids) < 3:
            ids += [id for _, id, _ in parser.feed(os.read(master, 65536))]
        assert ids == [0, 0x0D0A0311, 0x04130A1A]
    finally:
        os.close(master)
        os.waitpid(pid, 0)
