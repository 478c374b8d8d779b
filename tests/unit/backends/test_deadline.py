"""The program that runs the engine's own commands under a deadline, with real processes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_rl.backends.outpost import deadline

SOURCE = Path(deadline.__file__)


def _command(*argv: str, timeout_s: float = 20, stdin_bytes: int = 0, env: str = "") -> list[str]:
    variables = [env] if env else []
    arguments = [str(timeout_s), str(stdin_bytes), *variables, "--", *argv]
    return [sys.executable, "-IS", str(SOURCE), *arguments]


def _start(command: list[str], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe)


def _finish(process: subprocess.Popen[bytes]) -> tuple[int, bytes, bytes]:
    """Wait without closing its input, as the engine does."""
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    code = process.wait(timeout=10)
    process.communicate()
    return code, out, err


def _run(command: list[str], stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    process = _start(command)
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.flush()
    return _finish(process)


@pytest.fixture
def marker() -> Iterator[str]:
    """A number of seconds that only this test sleeps, to find its processes by."""
    seconds = f"{3000 + os.getpid() % 1000}.{time.monotonic_ns() % 10**9:09}"
    yield seconds
    for pid in _sleepers(seconds):
        os.kill(pid, signal.SIGKILL)


def _sleepers(seconds: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", seconds.encode()]:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)]
)
def test_the_exit_code_is_the_commands(script: str, code: int) -> None:
    assert _run(_command("sh", "-c", script))[0] == code


def test_output_is_exact_and_apart() -> None:
    assert _run(_command("sh", "-c", "printf out; printf err >&2")) == (0, b"out", b"err")


def test_much_output_is_complete() -> None:
    script = "head -c 5000000 /dev/zero | tr '\\0' x; echo end >&2"
    code, out, err = _run(_command("sh", "-c", script))
    assert (code, len(out), err) == (0, 5_000_000, b"end\n")


@pytest.mark.parametrize(("program", "code"), [("no-such-program", 127), ("/tmp", 126)])
def test_what_cannot_run_says_so(program: str, code: int) -> None:
    got, _, err = _run(_command(program))
    assert got == code
    assert program.encode() in err


def test_input_reaches_the_command_and_ends() -> None:
    data = os.urandom(300_000)
    code, out, _ = _run(_command("sha256sum", stdin_bytes=len(data)), data)
    assert (code, out.split()[0].decode()) == (0, hashlib.sha256(data).hexdigest())


def test_without_input_the_command_reads_its_end() -> None:
    assert _run(_command("cat")) == (0, b"", b"")


def test_a_command_that_does_not_read_its_input_is_not_waited_for() -> None:
    code, out, _ = _run(_command("echo", "done", stdin_bytes=60_000), bytes(60_000))
    assert (code, out) == (0, b"done\n")


def test_variables_are_the_commands_only() -> None:
    command = _command("sh", "-c", "echo $LD_X", env="LD_X=a=b")
    assert _run(command) == (0, b"a=b\n", b"")


def test_pythons_own_locale_does_not_reach_the_command() -> None:
    command = _command("sh", "-c", "echo locale=$LC_CTYPE")
    assert _finish(_start(command, env={"PATH": os.environ["PATH"]}))[1] == b"locale=\n"
    given = {"PATH": os.environ["PATH"], "LC_CTYPE": "C"}
    assert _finish(_start(command, env=given))[1] == b"locale=C\n"


def test_a_background_process_does_not_hold_it(marker: str) -> None:
    start_s = time.monotonic()
    script = f"sleep {marker} & echo started"
    assert _run(_command("sh", "-c", script)) == (0, b"started\n", b"")
    assert time.monotonic() - start_s < 60


def test_at_the_deadline_the_whole_tree_dies_and_its_output_is_kept(marker: str) -> None:
    script = f"echo first; trap '' TERM INT; setsid sleep {marker} & sleep {marker} | cat"
    start_s = time.monotonic()
    assert _run(_command("sh", "-c", script, timeout_s=0.5)) == (124, b"first\n", b"")
    assert 0.5 <= time.monotonic() - start_s < 60
    assert _sleepers(marker) == []


@pytest.mark.parametrize("stdin_bytes", [0, 500_000])
def test_when_its_starter_leaves_the_whole_tree_dies(marker: str, stdin_bytes: int) -> None:
    process = _start(_command("sh", "-c", f"echo up; sleep {marker}", stdin_bytes=stdin_bytes))
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.stdin.write(bytes(min(stdin_bytes, 60_000)))
    process.stdin.close()
    assert process.wait(timeout=5) == 124
    assert _sleepers(marker) == []
    process.stdout.close()
