"""Finding and killing processes, in the surroundings an outpost may find itself in."""

from __future__ import annotations

import os
import shutil
import struct
import sys
import time
from pathlib import Path

import pytest

from hermes_rl.backends.outpost.frames import Kind
from tests.conftest import require
from tests.unit.outpost.outpost_wire import Wire, lives, wait_dead

NOW = struct.pack(">I", 0)
NO_CTYPES = "import sys; sys.modules['ctypes'] = None\n"
NO_CHILDREN_FILE = (
    "import os\nexists = os.path.exists\n"
    "os.path.exists = lambda path: exists(path) and not str(path).endswith('/children')\n"
)
ESCAPE = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        print(os.getpid(), flush=True)\n"
    "        os.execve('/bin/sleep', ['sleep', '60'], {})\n"
    "    os._exit(0)\n"
    "time.sleep(60)\n"
)


@pytest.mark.parametrize("prelude", ["", NO_CHILDREN_FILE], ids=["children file", "listing"])
def test_hidden_descendants_are_found(prelude: str) -> None:
    with Wire(prelude=prelude) as wire:
        id = wire.start([sys.executable, "-c", ESCAPE], output="flow", window=1000)
        pid = int(wire.wait_for(Kind.STDOUT, id))
        assert lives(pid)
        wire.send(Kind.KILL, id, NOW)
        wire.result(id)
        assert not lives(pid)


def test_without_adoption_the_environment_tells() -> None:
    with Wire(prelude=NO_CTYPES) as wire:
        assert wire.hello["adopts"] == b"0"
        id = wire.start("(setsid sleep 60 & echo $!); exec sleep 60", output="flow", window=1000)
        pid = int(wire.wait_for(Kind.STDOUT, id))
        wire.send(Kind.KILL, id, NOW)
        wire.result(id)
        wait_dead(pid)


def test_kill_after_the_end_reaches_what_was_left() -> None:
    with Wire() as wire:
        id = wire.start("setsid sleep 60 >/dev/null 2>&1 & echo $!")
        pid = int(wire.result(id)["out"])
        other = int(wire.text("setsid sleep 60 >/dev/null 2>&1 & echo $!"))
        wire.send(Kind.KILL, id, NOW)
        wire.wait_for(Kind.DONE, id)
        assert not lives(pid)
        assert lives(other)


def test_kill_is_answered_when_the_tree_is_dead() -> None:
    with Wire() as wire:
        id = wire.start("trap '' TERM; sleep 60 & sleep 60", output="flow", window=10)
        wire.wait_for(Kind.STARTED, id)
        wire.send(Kind.KILL, id, NOW)
        kinds = {wire.receive()[0], wire.receive()[0]}
        assert kinds == {Kind.RESULT, Kind.DONE}


def test_a_kill_with_grace_is_a_kill_at_last() -> None:
    with Wire() as wire:
        id = wire.start(
            "trap '' TERM; echo up; while :; do sleep 1; done", output="flow", window=10
        )
        wire.wait_for(Kind.STDOUT, id)
        start = time.monotonic()
        wire.send(Kind.KILL, id, struct.pack(">I", 300))
        assert wire.result(id)["signal"] == b"9"
        assert 0.3 <= time.monotonic() - start < 30


def test_deadline_of_a_forking_crowd() -> None:
    with Wire() as wire:
        crowd = "for i in $(seq 60); do (while :; do sleep 0.01; done) & done; wait"
        result = wire.run(crowd, timeout_ms=700)
        assert result["timed_out"] == b"1"
        assert wire.text("pgrep -c -P 1 -x nothing || true")  # it still answers
        wire.send(Kind.KILL_ALL, 70)
        wire.wait_for(Kind.DONE, 70)
        children = Path(f"/proc/{wire.process.pid}/task/{wire.process.pid}/children")
        end = time.monotonic() + 5
        while children.read_text().split():
            assert time.monotonic() < end
            time.sleep(0.01)


def test_as_pid_1_it_reaps_and_outlives_kill_minus_one() -> None:
    require(shutil.which("bwrap") is not None, "needs bubblewrap")
    root = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--as-pid-1", "--proc", "/proc"]
    with Wire(python=[*root, "/usr/bin/python3"]) as wire:
        assert wire.hello["pid"] == b"1"
        wire.text("for i in 1 2 3 4; do (setsid true &); done; sleep 0.2")
        assert wire.text("cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z ' || true") == "0\n"
        assert wire.run("kill -9 -1; kill -TERM 1; kill -INT 1; sleep 0.1")["code"] in (
            b"0",
            b"137",
        )
        assert wire.text("echo on") == "on\n"


def test_a_stopped_and_continued_outpost_goes_on() -> None:
    with Wire() as wire:
        id = wire.start("sleep 0.2; echo done")
        os.kill(wire.process.pid, 19)
        time.sleep(0.4)
        os.kill(wire.process.pid, 18)
        assert wire.result(id)["out"] == b"done\n"


def test_many_commands_at_once() -> None:
    with Wire() as wire:
        start = time.monotonic()
        ids = [wire.start(f"sleep 0.3; echo {number}") for number in range(50)]
        results = {}
        while len(results) < 50:
            kind, id, payload = wire.receive()
            if kind == Kind.RESULT:
                results[id] = payload
        assert set(results) == set(ids)
        assert time.monotonic() - start < 10
