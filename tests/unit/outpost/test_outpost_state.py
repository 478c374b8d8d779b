"""Session state on disk: versions, torn files, users, shells other than bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_rl.backends.outpost import outpost
from hermes_rl.backends.outpost.frames import Kind, pack_fields, unpack_fields
from tests.conftest import require
from tests.unit.outpost.outpost_wire import Wire


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    with Wire(f"--state-dir={tmp_path / 'state'}", cwd=tmp_path) as wire:
        yield wire


def state_files(tmp_path: Path) -> list[str]:
    found = [name for _, _, names in os.walk(tmp_path / "state") for name in names]
    return [name for name in found if name != "setup"]


def test_a_removed_state_directory_loses_the_state_and_no_more(wire: Wire, tmp_path: Path) -> None:
    wire.run("export A=1; cd /tmp", session="s", save=1)
    shutil.rmtree(tmp_path / "state")
    lost = wire.run('echo "${A-unset} ${PATH:+set}"; export A=2', session="s", save=1)
    assert (lost["code"], lost["out"], lost["err"]) == (b"0", b"unset set\n", b"")
    assert wire.text("echo $A; pwd", session="s", save=1) == "2\n/tmp\n"
    assert wire.text("echo " + "x" * 200_000 + " | wc -c") == "200001\n"


def test_what_others_write_into_its_files_is_not_run(wire: Wire, tmp_path: Path) -> None:
    wire.run("export A=1; cd /tmp", session="reward", save=1)
    (state,) = (tmp_path / "state").rglob("state-*")
    for path, size in ((state, None), (tmp_path / "state" / "setup", "same")):
        times = path.stat()
        text = b"verdict() { echo passed; }; export B=2\n" + path.read_bytes()
        path.write_bytes(text[: times.st_size] if size else text)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    asked = wire.run('verdict; echo "${A-unset} ${B-unset}"; pwd', session="reward", save=1)
    assert asked["out"] == b"unset unset\n/tmp\n"
    assert b"verdict" in asked["err"]
    wire.run("export A=3", session="reward", save=1)
    assert wire.text("echo $A", session="reward", save=1) == "3\n"


def test_a_list_of_processes_is_fit_to_read(wire: Wire) -> None:
    shown = wire.text("cat /proc/$$/cmdline", session="s", save=1)
    assert "__hermes_undo" not in shown
    assert len(shown) < 400


@pytest.mark.parametrize("end", ["", "; exit 0"])
def test_traps_of_a_command_see_nothing_of_what_keeps_its_state(wire: Wire, end: str) -> None:
    require(shutil.which("bash") is not None, "needs bash")
    traps = "set -ET; trap 'echo seen' DEBUG; trap 'echo failed' ERR; trap 'echo left' RETURN"
    command = f"{traps}; export A=1; cd /usr; f() {{ echo f; }}{end}"
    plain = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    kept = wire.run(command, session="s", save=1)
    assert (kept["out"], kept["err"]) == (plain.stdout, plain.stderr)
    after = wire.run("f; echo $A; pwd", session="s", save=1)
    assert (after["out"], after["err"]) == (b"f\n1\n/usr\n", b"")


def test_home_and_shell_are_there_and_stay_as_the_session_leaves_them(wire: Wire) -> None:
    show = 'env | grep -E "^(HOME|SHELL)=" | sort'
    home, shell = wire.text(show, session="s", save=1).splitlines()
    assert home.startswith("HOME=/")
    assert shell.endswith("sh")
    wire.run("export SHELL=/opt/my-shell; unset HOME", session="s", save=1)
    assert wire.text(show, session="s", save=1) == "SHELL=/opt/my-shell\n"
    assert wire.run(["sh", "-c", show], session="s")["out"] == b"SHELL=/opt/my-shell\n"
    assert wire.text(show, session="other").splitlines() == [home, shell]


def test_a_shell_starts_with_what_it_would_ask_the_user_database_for(wire: Wire) -> None:
    wire.run("export A=1", session="s", save=1)
    started = wire.text("tr '\\0' '\\n' < /proc/$$/environ", session="s", save=1)
    assert {"HOME", "SHELL"} <= {line.partition("=")[0] for line in started.splitlines()}


def test_old_versions_are_removed(wire: Wire, tmp_path: Path) -> None:
    for number in range(10):
        wire.run(f"export A={number}", session="s", save=1)
    assert state_files(tmp_path) == ["state-10"]
    wire.run("export A=1", session="other", save=1)
    assert len(state_files(tmp_path)) == 2


def test_a_version_stays_while_a_command_starts_from_it(wire: Wire, tmp_path: Path) -> None:
    wire.run("export A=old", session="s", save=1)
    reader = wire.start("sleep 0.3; echo $A", session="s")
    wire.run("export A=new", session="s", save=1)
    assert len(state_files(tmp_path)) == 2
    assert wire.result(reader)["out"] == b"old\n"
    assert len(state_files(tmp_path)) == 1


def test_commands_of_one_session_may_overlap(wire: Wire) -> None:
    """Should they, the last to end wins and nothing is torn."""
    first = wire.start("export A=slow; sleep 0.3", session="s", save=1)
    second = wire.start("export A=quick", session="s", save=1)
    for id in (second, first):
        assert wire.result(id)["code"] == b"0"
    assert wire.text("echo $A", session="s", save=1) == "slow\n"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"export A=1\n",
        b"export A=1\nreturn 0\n#/tmp",
        b"export A=1\nreturn 0\n#/tmp\n#en",
        b"\n#end",
    ],
)
def test_a_torn_file_is_no_state(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "state"
    path.write_bytes(text)
    assert outpost.read_state_cwd(os.fsencode(path)) is None


def test_a_complete_file_names_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"export A='\nreturn 0\n#/fake'\nreturn 0\n#/a\nb\n#end")
    assert outpost.read_state_cwd(os.fsencode(path)) == b"/a\nb"
    assert outpost.read_state_cwd(os.fsencode(tmp_path / "absent")) is None


def test_a_planted_link_is_no_state(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"\nreturn 0\n#/tmp\n#end")
    (tmp_path / "link").symlink_to("real")
    assert outpost.read_state_cwd(os.fsencode(tmp_path / "link")) is None


def test_a_full_disk_keeps_the_previous_state() -> None:
    require(shutil.which("bwrap") is not None, "needs bubblewrap")
    root = ["bwrap", "--dev-bind", "/", "/", "--size", "65536", "--tmpfs", "/run"]
    with Wire("--state-dir=/run/state", python=[*root, "/usr/bin/python3"]) as wire:
        wire.run("export A=old; export B=1", session="s", save=1)
        wire.run("export A=new; head -c 1000000 /dev/zero >/run/fill", session="s", save=1)
        assert wire.text("echo $A", session="s") == "old\n"
        failed = wire.run("x" * 200_000)
        assert failed["errno"] == b"28"
        wire.run("rm /run/fill")
        wire.run("export A=new", session="s", save=1)
        assert wire.text("echo $A", session="s") == "new\n"


def test_nowhere_to_write_means_no_state() -> None:
    require(shutil.which("bwrap") is not None, "needs bubblewrap")
    places = ["/tmp", "/dev/shm", "/var/tmp", "/run"]
    covered = [word for place in places for word in ("--ro-bind", "/usr/share", place)]
    root = ["bwrap", "--dev-bind", "/", "/", "--dev", "/dev", "--remount-ro", "/dev", *covered]
    with Wire(python=[*root, "/usr/bin/python3"], env={"PATH": "/usr/bin:/bin"}, cwd="/") as wire:
        assert wire.run("export A=1; cd /usr", session="s", save=1)["code"] == b"0"
        assert wire.text('echo "${A-unset}"; pwd', session="s", save=1) == "unset\n/\n"


@pytest.fixture
def sh_wire(tmp_path: Path) -> Iterator[Wire]:
    require(shutil.which("bwrap") is not None, "needs bubblewrap")
    hidden = ["--ro-bind", "/dev/null", os.path.realpath("/bin/bash")]
    root = ["bwrap", "--dev-bind", "/", "/", *hidden, "--chdir", str(tmp_path)]
    with Wire(f"--state-dir={tmp_path / 'state'}", python=[*root, "/usr/bin/python3"]) as wire:
        yield wire


def test_plain_sh_keeps_environment_and_directory(sh_wire: Wire) -> None:
    assert sh_wire.hello["shell"] == b"sh"
    sh_wire.run("export A='it''s  \"q\"'; cd /tmp; f() { :; }; exit 4", session="s", save=1)
    assert sh_wire.text('echo "$A"; pwd', session="s", save=1) == 'its  "q"\n/tmp\n'
    assert sh_wire.run("f", session="s", save=1)["code"] == b"127"


def test_plain_sh_survives_what_ends_it(sh_wire: Wire) -> None:
    sh_wire.run("export A=kept", session="s", save=1)
    assert sh_wire.run("if then", session="s", save=1)["code"] == b"2"
    assert sh_wire.run("kill -9 $$", session="s", save=1)["code"] == b"137"
    assert sh_wire.run("set -eu; false", session="s", save=1)["code"] == b"1"
    assert sh_wire.text("echo $A", session="s", save=1) == "kept\n"


def test_plain_sh_keeps_the_calls_environment_out(sh_wire: Wire) -> None:
    sh_wire.run("export A=own", session="s", save=1)
    env = b"\0\0\0\7A=given\0\0\0\3B=x"
    assert sh_wire.text('echo "$A $B"', session="s", save=1, env=env) == "given x\n"
    assert sh_wire.text('echo "$A ${B-unset}"', session="s", save=1) == "own unset\n"


PASSWD = "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/sh\n"
GROUP = "root:x:0:\nnogroup:x:65534:\n"
"""The users of the tests: which ones a machine has differs."""


@pytest.fixture
def root_wire(tmp_path: Path) -> Iterator[Wire]:
    require(os.geteuid() == 0, "needs root to switch users")
    require(shutil.which("bwrap") is not None, "needs bubblewrap")
    for directory in (tmp_path, *tmp_path.parents):
        if directory == Path(tempfile.gettempdir()):
            break
        directory.chmod(0o755)
    root = ["bwrap", "--dev-bind", "/", "/", "--cap-add", "ALL", "--chdir", str(tmp_path)]
    for name, text in (("passwd", PASSWD), ("group", GROUP)):
        (tmp_path / name).write_text(text)
        root += ["--ro-bind", str(tmp_path / name), f"/etc/{name}"]
    python = [*root, "/usr/bin/python3"]
    with Wire(f"--state-dir={tmp_path / 'state'}", "--user=nobody", python=python) as wire:
        yield wire


def test_default_user_is_whose_commands_and_files_they_are(root_wire: Wire, tmp_path: Path) -> None:
    assert root_wire.text("id -un; id -gn; echo $HOME") == "nobody\nnogroup\n/nonexistent\n"
    assert root_wire.text("grep ^CapEff /proc/self/status").split() == ["CapEff:", "0" * 16]
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    root_wire.send(Kind.WRITE, 90, pack_fields({"path": "open/new", "data": b"x"}))
    root_wire.wait_for(Kind.DONE, 90)
    assert (tmp_path / "open" / "new").stat().st_uid == 65534
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "private").mkdir(mode=0o700)
    for kind, path in ((Kind.WRITE, "closed"), (Kind.READ, "secret"), (Kind.LIST, "private")):
        fields = {"path": path, "data": b"x", "offset": 0, "limit": 100_000}
        root_wire.send(kind, 91, pack_fields(fields))
        assert unpack_fields(root_wire.wait_for(Kind.FAILED, 91))["errno"] == b"13"
    root_wire.ping()
    assert root_wire.text("id -un", user="root") == "root\n"


def test_users_have_sessions_of_their_own(root_wire: Wire) -> None:
    root_wire.run("export A=nobody; cd /tmp", session="s", save=1)
    root_wire.run("export A=root", session="s", save=1, user="root")
    assert root_wire.text("echo $A; pwd", session="s", save=1) == "nobody\n/tmp\n"
    assert root_wire.text("echo $A", session="s", save=1, user="root") == "root\n"
    assert root_wire.text("id -u; id -g", user="1234:4321") == "1234\n4321\n"


def test_unknown_users_are_refused(root_wire: Wire) -> None:
    for user in ("no-such-user", "root:no-such-group"):
        failed = root_wire.run("true", user=user)
        assert failed["reason"] == b"user"
        assert b"no-such" in failed["text"]


def test_a_user_may_start_where_it_could_not_go(root_wire: Wire, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert root_wire.text("pwd", cwd=str(closed)) == f"{closed}\n"
    assert root_wire.run("ls", cwd=str(closed))["code"] != b"0"


def test_transfers_are_the_users(root_wire: Wire, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    root_wire.send(Kind.PACK, 60, pack_fields({"path": "secret", "window": 1 << 20}))
    told = root_wire.wait_for(Kind.STDERR, 60)
    assert told.startswith(b"13 ")
    assert root_wire.result(60)["code"] == b"1"
