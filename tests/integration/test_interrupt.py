"""Signals end a program in time, even one whose event loop is stuck or whose teardown hangs."""

import signal
import subprocess
import sys
import time

import pytest

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


def program(body: str, grace: int = 14) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body, grace=grace)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


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


def test_without_a_signal_nothing_changes() -> None:
    with program("await anyio.sleep(0)") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # Not communicate(): it does not see what readline() has buffered.
        assert (process.stdout.read(), process.stderr.read()) == ("left\n", "")
    assert process.returncode == 0
