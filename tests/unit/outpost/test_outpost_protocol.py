"""The outpost's side of the protocol: a real process, real pipes, frames by hand."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from hermes_rl.backends.outpost import frames, outpost
from hermes_rl.backends.outpost.frames import HEADER, MAX_PAYLOAD_BYTES, Kind, frame, pack_fields
from hermes_rl.bounds import LONGEST_S
from tests.conftest import require
from tests.unit.outpost.outpost_wire import SOURCE, Wire, lives, wait_dead

OLD_PYTHONS = sorted(Path("/root/.pyenv/versions").glob("3.8.*/bin/python3"))


def test_constants_are_those_of_the_host() -> None:
    assert outpost.PROTOCOL_VERSION == frames.PROTOCOL_VERSION
    assert outpost.HEADER.format == frames.HEADER.format
    assert outpost.MAX_PAYLOAD_BYTES == frames.MAX_PAYLOAD_BYTES
    assert {kind.name: getattr(outpost, kind.name) for kind in Kind} == {
        kind.name: kind.value for kind in Kind
    }


def test_fields_are_encoded_as_by_the_host() -> None:
    fields: dict[str, bytes | str | int] = {"a": b"\0\xff", "bcd": "é", "n": 7, "empty": b""}
    assert outpost.pack_fields(fields) == frames.pack_fields(fields)
    assert outpost.unpack_fields(frames.pack_fields(fields)) == {
        "a": b"\0\xff",
        "bcd": "é".encode(),
        "n": b"7",
        "empty": b"",
    }
    items = [b"", b"x" * 300, b"\0"]
    assert outpost.pack_list(items) == frames.pack_list(items)
    assert outpost.unpack_list(frames.pack_list(items)) == items


def test_hello_says_what_there_is(tmp_path: Path) -> None:
    with Wire(cwd=tmp_path) as wire:
        assert wire.hello["version"] == b"1"
        assert wire.hello["cwd"] == os.fsencode(tmp_path)
        assert wire.hello["shell"] == b"bash"
        assert wire.hello["adopts"] == b"1"
        assert int(wire.hello["pid"]) == wire.process.pid


@pytest.mark.parametrize(
    "data", [frame(99, 1), HEADER.pack(1, 1, MAX_PAYLOAD_BYTES + 1), b"\xff" * 9]
)
def test_garbage_ends_the_outpost(data: bytes) -> None:
    with Wire() as wire:
        sleeper = int(wire.text("sleep 60 >/dev/null 2>&1 & echo $!"))
        wire.send_bytes(data)
        assert wire.wait_for(Kind.BYE, 0) == b"garbage"
        assert wire.process.wait(10) == outpost.EXIT_TAMPERED
        wait_dead(sleeper)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (Kind.RUN, b"\x05abc"),
        (Kind.READ, pack_fields({"path": "x"})),
        (Kind.CREDIT, b"ab"),
        (Kind.WRITE, b"\xff\xff"),
        (Kind.RUN, pack_fields({"output": "keep", "limit": "many", "cmd": "x"})),
        (Kind.RUN, pack_fields({"output": "keep", "cmd": "sleep 9", "timeout_ms": 10**400})),
    ],
)
def test_malformed_request_never_kills_silently(kind: Kind, payload: bytes) -> None:
    """It is answered, or the outpost says that what it got was garbage."""
    with Wire() as wire:
        id = wire.start("sleep 60", output="flow", window=10)
        wire.wait_for(Kind.STARTED, id)
        wire.send(kind, id if kind == Kind.CREDIT else 77, payload)
        wire.send(Kind.PING, 78)
        answers = set()
        while not answers & {Kind.BYE, Kind.PONG}:
            answers.add(wire.receive()[0])
        assert answers & {Kind.BYE, Kind.FAILED}


def test_an_offset_beyond_all_files_is_refused() -> None:
    with Wire() as wire:
        wire.send(Kind.READ, 7, pack_fields({"path": "/etc/passwd", "offset": 10**30, "limit": 10}))
        wire.wait_for(Kind.FAILED, 7)
        wire.ping()


def test_a_refusal_is_short_whatever_it_names() -> None:
    with Wire() as wire:
        id = wire.start(["x" * 900_000])
        assert len(wire.wait_for(Kind.FAILED, id)) < 20_000
        wire.ping()


def test_unknown_ids_are_ignored() -> None:
    with Wire() as wire:
        for kind, payload in (
            (Kind.STDIN, b"data"),
            (Kind.STDIN_EOF, b""),
            (Kind.CREDIT, struct.pack(">I", 1000)),
            (Kind.DATA, b"data"),
            (Kind.END, b""),
            (Kind.RESIZE, struct.pack(">HH", 80, 24)),
        ):
            wire.send(kind, 4242, payload)
        wire.ping()


def test_kill_of_an_unknown_id_is_answered() -> None:
    with Wire() as wire:
        wire.send(Kind.KILL, 4242, struct.pack(">I", 0))
        wire.wait_for(Kind.DONE, 4242)


def test_frames_may_arrive_byte_by_byte() -> None:
    with Wire() as wire:
        data = frame(Kind.RUN, 5, pack_fields({"output": "keep", "limit": 100, "cmd": "echo slow"}))
        for position in range(len(data)):
            wire.send_bytes(data[position : position + 1])
        assert wire.result(5)["out"] == b"slow\n"


def test_end_of_the_stream_kills_everything_and_removes_its_files(tmp_path: Path) -> None:
    state, extra = tmp_path / "state", tmp_path / "extra"
    (extra / "deep").mkdir(parents=True)
    (extra / "deep" / "link").symlink_to("/")
    wire = Wire(f"--state-dir={state}", f"--remove={extra}")
    wire.run("export A=1", session="s", save=1)
    pids = wire.text(
        "sleep 60 >/dev/null 2>&1 & echo $!; setsid sleep 60 >/dev/null 2>&1 & echo $!;"
        "(trap '' TERM HUP; exec sleep 60) >/dev/null 2>&1 & echo $!"
    )
    running = wire.start("sleep 60", output="flow", window=10)
    wire.wait_for(Kind.STARTED, running)
    assert all(map(lives, map(int, pids.split())))
    assert wire.close() == 0
    wait_dead(*map(int, pids.split()))
    assert not state.exists()
    assert not extra.exists()
    assert Path("/").is_dir()


def test_an_engine_that_is_gone_before_the_first_word_ends_it() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    command = [sys.executable, "-ISc", SOURCE]
    with theirs, subprocess.Popen(command, stdin=theirs, stdout=theirs) as process:
        assert process.wait(10) == 0


def test_the_longest_lease_and_deadline_that_can_be_set_are_waited_for() -> None:
    with Wire(f"--lease-s={LONGEST_S}") as wire:
        assert wire.text("sleep 0.1; echo hi", timeout_ms=LONGEST_S * 1000) == "hi\n"


def test_lease_ends_it() -> None:
    start = time.monotonic()
    with Wire("--lease-s=0.5") as wire:
        sleeper = int(wire.text("sleep 60 >/dev/null 2>&1 & echo $!"))
        assert wire.wait_for(Kind.BYE, 0) == b"expired"
        assert wire.process.wait(10) == 0
        assert time.monotonic() - start >= 0.5
        wait_dead(sleeper)


@pytest.mark.parametrize("name", ["AS", "CPU", "DATA", "FSIZE", "NOFILE", "NPROC", "STACK"])
def test_whoever_limits_its_resources_ends_it(name: str) -> None:
    number = getattr(resource, f"RLIMIT_{name}")
    with Wire() as wire:
        sleeper = int(wire.text("sleep 60 >/dev/null 2>&1 & echo $!"))
        soft, hard = resource.prlimit(wire.process.pid, number)
        lower = (1 << 40) if soft == resource.RLIM_INFINITY else soft - 1
        resource.prlimit(wire.process.pid, number, (lower, hard))
        time.sleep(0.1)
        with suppress(BrokenPipeError):  # it may have looked already
            wire.send(Kind.PING, 1)
        assert wire.wait_for(Kind.BYE, 0) == b"limited"
        assert wire.process.wait(10) == outpost.EXIT_TAMPERED
        wait_dead(sleeper)


def test_shutdown_says_goodbye() -> None:
    with Wire() as wire:
        wire.send(Kind.SHUTDOWN, 9)
        assert wire.wait_for(Kind.BYE, 0) == b"shutdown"
        assert wire.process.wait(10) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_polite_signals_do_not_end_it(number: int) -> None:
    with Wire() as wire:
        os.kill(wire.process.pid, number)
        wire.ping()


def test_a_stream_without_credit_stops_alone() -> None:
    with Wire() as wire:
        flood = wire.start("yes", output="flow", window=1000)
        assert len(wire.wait_for(Kind.STDOUT, flood)) == 1000
        assert wire.text("echo beside") == "beside\n"
        with pytest.raises(TimeoutError):
            wire.receive(timeout_s=0.3)
        wire.send(Kind.CREDIT, flood, struct.pack(">I", 10))
        assert wire.wait_for(Kind.STDOUT, flood) == b"y\n" * 5
        wire.send(Kind.KILL, flood, struct.pack(">I", 0))
        assert wire.result(flood)["signal"] == b"9"


def test_an_engine_that_does_not_read_costs_bounded_memory() -> None:
    with Wire() as wire:
        wire.start("yes", output="flow", window=1 << 30)
        wire.start("head -c 300000000 /dev/zero", limit=1000)
        wire.start("yes", output="tail", limit=100_000, merge=1)
        time.sleep(1.5)
        status = Path(f"/proc/{wire.process.pid}/status").read_text()
        resident_kb = int(status.split("VmRSS:")[1].split()[0])
        assert resident_kb < 40_000


def test_descriptors_are_closed_after_every_kind_of_command() -> None:
    with Wire() as wire:

        def count() -> int:
            return len(os.listdir(f"/proc/{wire.process.pid}/fd"))

        wire.run("true", session="s", save=1)
        before = count()
        for _ in range(5):
            wire.run("true", session="s", save=1)
            wire.run(["no-such-program"])
            wire.run("cat", stdin=b"x" * 10)
            wire.run("true", cwd="/no/such")
            wire.run("echo x", output="flow", window=1000)
            wire.run("echo x", output="flow", window=1000, pty=struct.pack(">HH", 80, 24))
            killed = wire.start("sleep 60", output="flow", window=1)
            wire.send(Kind.KILL, killed, struct.pack(">I", 0))
            wire.result(killed)
            wire.run("x" * 200_000)
        wire.ping()
        assert count() == before
        assert wire.text("ls /proc/self/fd") == "0\n1\n2\n3\n"


def test_a_command_in_pieces_is_put_together() -> None:
    with Wire() as wire:
        payload = pack_fields(
            {"output": "keep", "limit": 100, "cmd": "echo '" + "x" * 2_000_000 + "' | wc -c"}
        )
        wire.send(Kind.RUN, 3, pack_fields({"more": 1}))
        for start in range(0, len(payload), 500_000):
            wire.send(Kind.DATA, 3, payload[start : start + 500_000])
        wire.send(Kind.END, 3)
        assert wire.result(3)["out"] == b"2000001\n"


def test_commands_know_nothing_of_the_mounted_interpreter() -> None:
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONHOME": "/.hermes",
        "PYTHONPATH": "/.hermes/lib:/own/modules",
        "LD_LIBRARY_PATH": "/.hermes/lib",
        "LD_PRELOAD": "",
        "PYTHONUNBUFFERED": "1",
    }
    with Wire("--runtime-dir=/.hermes", env=env) as wire:
        seen = dict(line.split("=", 1) for line in wire.text("env").splitlines())
    assert "PYTHONHOME" not in seen
    assert "LD_LIBRARY_PATH" not in seen
    assert seen["PYTHONPATH"] == "/own/modules"
    assert seen["PYTHONUNBUFFERED"] == "1"


def test_old_interpreters_do_too(tmp_path: Path) -> None:
    require(bool(OLD_PYTHONS), "needs a Python 3.8")
    with Wire(
        f"--state-dir={tmp_path / 'state'}", python=[str(OLD_PYTHONS[0])], cwd=tmp_path
    ) as wire:
        assert wire.hello["python"] == b"3.8"
        wire.run("export A=kept; cd /", session="s", save=1)
        assert wire.text("echo $A; pwd", session="s", save=1) == "kept\n/\n"
        assert wire.run("sleep 60 | setsid sleep 60", timeout_ms=200)["timed_out"] == b"1"
        wire.send(Kind.WRITE, 50, pack_fields({"path": "a/b", "data": b"x" * 1000}))
        wire.wait_for(Kind.DONE, 50)
        wire.send(Kind.READ, 51, pack_fields({"path": "a/b", "offset": 0, "limit": 1000}))
        assert wire.wait_for(Kind.CHUNK, 51) == b"x" * 1000
        wire.send(Kind.LIST, 52, pack_fields({"path": "."}))
        assert b"state" in wire.wait_for(Kind.CHUNK, 52)
        wire.send(Kind.PACK, 53, pack_fields({"path": "a", "window": 1 << 20}))
        packed = wire.result(53)
        assert packed["code"] == b"0"
        wire.send(Kind.UNPACK, 54, pack_fields({"path": "copy"}))
        wire.send(Kind.STDIN, 54, packed["out"])
        wire.send(Kind.STDIN_EOF, 54)
        assert wire.result(54)["code"] == b"0"
        assert (tmp_path / "copy" / "b").read_bytes() == b"x" * 1000
        typed = wire.run("tty", output="flow", window=1000, pty=struct.pack(">HH", 80, 24))
        assert typed["code"] == b"0"
