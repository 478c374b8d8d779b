"""Signals end a program in time, even one whose event loop is stuck or whose teardown hangs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from hermes_rl.cli.exit_codes import exit_code_after

PROGRAM = """
import sys, time
import anyio
from hermes_rl.cli import interrupt

async def main():
    with anyio.CancelScope() as scope, interrupt.Interruption(scope.cancel) as interruption:
        print("ready", flush=True)
        {body}
    print("left", flush=True)
    return interruption.exit_code

interrupt.GRACE_S = {grace}
sys.exit(anyio.run(main))
"""
STUCK = "while True: time.sleep(0.01)"
HANGS = """try: await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True): await anyio.sleep_forever()"""


def program(
    body: str, grace: int = 14, before: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    return started(PROGRAM.format(body=body, grace=grace), before=before)


def started(source: str, before: Callable[[], None] | None = None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_first_signal_cancels_and_gives_the_exit_code(
    number: signal.Signals, code: int
) -> None:
    process = program("await anyio.sleep_forever()")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=20)
    assert process.returncode == code
    assert stdout == "left\n"
    assert number.name in stderr


@pytest.mark.parametrize("body", [STUCK, HANGS], ids=["stuck loop", "hanging teardown"])
def test_the_second_signal_ends_at_once(body: str) -> None:
    process = program(body)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert "stopping" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=5)
    assert process.returncode == 130
    assert stdout == ""


@pytest.mark.parametrize("body", [STUCK, HANGS], ids=["stuck loop", "hanging teardown"])
def test_a_teardown_that_takes_too_long_is_cut_off(body: str) -> None:
    process = program(body, grace=1)
    began_s = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 143
    assert 0.9 < time.monotonic() - began_s < 10
    assert "Teardown took more than 1 s" in stderr


def ignore(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)


def test_a_hangup_that_nohup_had_ignored_stays_ignored() -> None:
    process = program("await anyio.sleep(0.5)", before=partial(ignore, signal.SIGHUP))
    process.send_signal(signal.SIGHUP)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (0, "left\n", "")


IMPORTS = """
import signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.stdout.write("ready\\n")
            sys.stdout.flush()
            signal.pause()
sys.meta_path.insert(0, Finder())
from hermes_rl.cli.main import main
sys.exit(main(["process", "terminal-test"]))
"""


@pytest.mark.parametrize(
    "name", ["pydantic", "hermes_rl.cli.process", "atroposlib", "hermes_rl.cli.env_commands"]
)
def test_ctrl_c_during_imports_ends_a_command_without_a_traceback(name: str) -> None:
    process = started(IMPORTS.format(name=name))
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert (process.returncode, stdout, stderr) == (130, "", "SIGINT: stopped.\n")


def test_ctrl_c_while_a_command_reads_ends_it_without_a_traceback() -> None:
    words = [sys.executable, "-m", "hermes_rl", "parse", "--parser", "hermes", "/dev/stdin"]
    source, sink = os.pipe()
    with os.fdopen(sink, "wb"):
        process = subprocess.Popen(words, stdin=source, stderr=subprocess.PIPE, text=True)
        os.close(source)
        wait_for(lambda: "pipe_read" in Path(f"/proc/{process.pid}/wchan").read_text())
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert (process.returncode, stderr) == (130, "SIGINT: stopped.\n")


async def raises_in_a_task_group(error: BaseException) -> int:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        raise error


def test_an_interrupt_out_of_a_task_group_is_no_bug(capsys: pytest.CaptureFixture[str]) -> None:
    work = partial(anyio.run, raises_in_a_task_group, KeyboardInterrupt())
    assert exit_code_after(work) == 130
    assert capsys.readouterr().err == "SIGINT: stopped.\n"
    assert exit_code_after(partial(anyio.run, raises_in_a_task_group, ValueError())) == 70
    assert "this is a bug" in capsys.readouterr().err


def test_without_a_signal_nothing_changes() -> None:
    with program("await anyio.sleep(0)") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # Not communicate(): it does not see what readline() has buffered.
        assert (process.stdout.read(), process.stderr.read()) == ("left\n", "")
    assert process.returncode == 0


def test_ctrl_c_that_ended_the_reader_too_is_still_ctrl_c() -> None:
    process = program("await anyio.sleep_forever()")
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130


def test_a_terminal_that_hangs_up_is_a_hang_up() -> None:
    ours, theirs = os.openpty()
    body = PROGRAM.format(body="await anyio.sleep_forever()", grace=60)
    process = subprocess.Popen(
        [sys.executable, "-c", body], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while not seen.endswith(b"\n"):  # the terminal passes a line on in pieces
        seen += os.read(ours, 100)
    os.close(ours)
    assert seen.split() == [b"ready"]
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 129
