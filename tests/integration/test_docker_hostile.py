"""What a hostile agent may do to its own sandbox: it fails cleanly or not at all, and alone.

Beside each attack a neighbour in the same engine does ordinary work; its results must not change.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.errors import (
    FileError,
    SandboxGone,
    SandboxPermissionDenied,
    UnsafeArchive,
)
from hermes_rl.sandbox import BackendSettings, Sandbox

from .attacked import attacked, is_well
from .docker_boxes import containers_of, docker, run_settings

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

FLOOD_BYTES = 50_000_000
ENTRIES = 10_000


@pytest.fixture
def settings(cache_dir: Path) -> Iterator[BackendSettings]:
    settings = run_settings(cache_dir)
    yield settings
    assert containers_of(settings.run_id) == {}, "the test left containers"


async def test_an_output_flood_is_capped_and_counted(settings: BackendSettings) -> None:
    async with attacked(settings) as victim:
        command = f"head -c {FLOOD_BYTES} /dev/zero | tee /dev/stderr"
        result = await victim.exec(command, timeout_s=60, max_output_bytes=10_000)
        assert (result.stdout_total, result.stderr_total) == (FLOOD_BYTES, FLOOD_BYTES)
        assert (len(result.stdout), len(result.stderr)) == (10_000, 10_000)
        assert await is_well(victim)


async def test_endless_output_ends_at_the_deadline(settings: BackendSettings) -> None:
    async with attacked(settings) as victim:
        result = await victim.exec("yes", timeout_s=1, max_output_bytes=1000)
        assert result.timed_out
        assert result.stdout_total > len(result.stdout) == 1000
        assert await is_well(victim)


async def test_a_fork_bomb_meets_its_limit_and_dies_at_the_deadline(
    settings: BackendSettings,
) -> None:
    async with attacked(settings, pids=80) as victim:
        bomb = "f() { f | f & f; }; f"
        result = await victim.exec(bomb, timeout_s=3, session=None, max_output_bytes=1000)
        assert result.exit_code != 0
        await victim.kill_all()
        with anyio.fail_after(60):
            while not await is_well(victim):
                await anyio.sleep(0.2)


async def test_memory_beyond_the_limit_kills_the_command_only(settings: BackendSettings) -> None:
    async with attacked(settings, memory_mb=96) as victim:
        for _ in range(3):
            result = await victim.exec(["python3", "-c", "b = b'1' * (1 << 30)"], timeout_s=30)
            assert result.exit_code == 137
        assert await is_well(victim)


async def test_killing_every_process_ends_commands_not_the_sandbox(
    settings: BackendSettings,
) -> None:
    async with attacked(settings) as victim:
        result = await victim.exec("kill -9 -1; kill -9 1; sleep 0.1", timeout_s=10)
        assert result.exit_code in (0, 137)
        for signal in ("TERM", "INT", "HUP", "STOP", "TSTP", "SEGV", "PIPE"):
            await victim.exec(f"kill -{signal} 1", timeout_s=10)
        assert await is_well(victim)


@pytest.mark.parametrize(
    "script",
    [
        "prlimit --pid 1 --cpu=1:1",
        "prlimit --pid 1 --cpu=1:1; while :; do yes | head -c 1000000000; done",
        "prlimit --pid 1 --data=1000:1000",
        "prlimit --pid 1 --nofile=3:3",
    ],
)
async def test_limiting_the_supervisor_is_the_agents_doing(
    settings: BackendSettings, script: str
) -> None:
    async def attack(victim: Sandbox) -> None:
        await victim.exec(script, timeout_s=50)
        while True:
            await victim.exec("echo still there", timeout_s=50)

    async with attacked(settings) as victim:
        with anyio.fail_after(60), pytest.raises(SandboxGone, match="limited the res") as gone:
            await attack(victim)
        assert (gone.value.by_agent, gone.value.retryable) == (True, False)


async def test_a_supervisor_stopped_from_the_host_is_noticed_by_the_ping(
    settings: BackendSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.backends.outpost.channel.PING_INTERVAL_S", 0.3)
    monkeypatch.setattr("hermes_rl.backends.outpost.channel.PING_TIMEOUT_S", 0.5)
    async with attacked(settings) as victim:
        pid = docker("inspect", "--format", "{{.State.Pid}}", victim.id)
        await anyio.run_process(["kill", "-STOP", pid])
        with anyio.fail_after(60), pytest.raises(SandboxGone):
            await victim.exec("sleep 20", timeout_s=25)
        assert len(containers_of(settings.run_id)) == 1


async def test_closed_standard_streams_are_no_end(settings: BackendSettings) -> None:
    async with attacked(settings) as victim:
        closed = await victim.exec("exec 0<&- 1>&- 2>&-; sleep 0.3; exit 4", timeout_s=10)
        assert closed.exit_code == 4
        assert await is_well(victim)


async def test_a_deleted_working_directory_is_left(settings: BackendSettings) -> None:
    async with attacked(settings) as victim:
        await victim.exec("mkdir -p /gone/deep && cd /gone/deep && rm -rf /gone", timeout_s=10)
        result = await victim.exec("pwd; echo on", timeout_s=10)
        assert result.text.endswith("on\n")
        await victim.exec("cd /root", timeout_s=10)
        assert await is_well(victim)


async def test_everything_deleted_still_closes(settings: BackendSettings) -> None:
    async with attacked(settings) as victim:
        await victim.exec("rm -rf --no-preserve-root / 2>/dev/null", timeout_s=60)
        gone = await victim.exec("ls", timeout_s=10)
        assert gone.exit_code != 0
        await victim.write("/tmp/x", b"files still work")
        assert await victim.read("/tmp/x", max_bytes=99) == b"files still work"


async def test_a_full_disk_is_an_error_of_files_not_of_commands(settings: BackendSettings) -> None:
    async with attacked(settings, workdir="/dev/shm") as victim:
        full = await victim.exec("head -c 100000000 /dev/zero > /dev/shm/fill", timeout_s=30)
        assert "No space left" in full.stderr_text
        with pytest.raises(FileError, match="No space left"):
            await victim.write("/dev/shm/more", bytes(1 << 20))
        assert (await victim.exec("echo still", timeout_s=10)).text == "still\n"
        await victim.exec("rm /dev/shm/fill", timeout_s=10)
        assert await is_well(victim)


ESCAPEES = {
    "ignores_sigterm": "trap '' TERM INT HUP; sleep 31415",
    "double_forks": "(setsid sh -c 'sleep 31415 &' &) ; sleep 31415",
    "clears_its_environment": "env -i setsid sh -c 'sleep 31415 & sleep 31415' & sleep 31415",
    "starts_again": "while :; do setsid sleep 31415 & sleep 0.01; done",
}


@pytest.mark.parametrize("script", ESCAPEES.values(), ids=ESCAPEES)
async def test_nothing_escapes_the_kill(settings: BackendSettings, script: str) -> None:
    async with attacked(settings) as victim:
        result = await victim.exec(script, timeout_s=1)
        assert result.timed_out
        assert result.duration_s < 60
        left = await victim.exec("pgrep -fx 'sleep 31415'", timeout_s=10, session=None)
        assert left.text == ""


@pytest.mark.parametrize(
    "make",
    [
        "mknod t/device c 1 3",
        "mkfifo t/pipe",
        "ln -s /etc/passwd t/absolute",
        "ln -s ../../outside t/upward",
    ],
)
async def test_what_may_not_leave_is_refused(
    settings: BackendSettings, tmp_path: Path, make: str
) -> None:
    (tmp_path / "outside").write_text("untouched")
    async with attacked(settings) as victim:
        await victim.exec(f"mkdir t; echo fine > t/a; {make}", timeout_s=10)
        with pytest.raises(UnsafeArchive):
            await victim.download("t", tmp_path / "in" / "t")
    assert (tmp_path / "outside").read_text() == "untouched"
    assert {path.name for path in tmp_path.iterdir()} <= {"outside", "in"}


async def test_many_files_come_out_and_too_many_bytes_do_not(
    settings: BackendSettings, tmp_path: Path
) -> None:
    async with attacked(settings) as victim:
        many = f"mkdir /dev/shm/t && cd /dev/shm/t && seq {ENTRIES} | xargs touch"
        await victim.exec(f"truncate -s {FLOOD_BYTES} big && {many}", timeout_s=60)
        await victim.download("/dev/shm/t", tmp_path / "t")
        assert len(os.listdir(tmp_path / "t")) == ENTRIES
        with pytest.raises(UnsafeArchive):
            await victim.download("/root/big", tmp_path / "big", max_bytes=1 << 20)


FORGE = """
for fd in /proc/1/fd/*; do
  if [ -p $fd ] && grep -q '^flags:.*1$' /proc/1/fdinfo/${{fd##*/}}; then printf '{0}' > $fd; fi
done
"""
"""Writes to the pipes that the supervisor itself only writes to: its replies."""


async def test_forged_answers_to_nobody_are_ignored(settings: BackendSettings) -> None:
    chunk_for_99 = "E\\0\\0\\0\\143\\0\\0\\0\\1x"
    async with attacked(settings) as victim:
        for _ in range(3):
            await victim.exec(FORGE.format(chunk_for_99), timeout_s=10)
        assert await is_well(victim)


@pytest.mark.parametrize("then", ["", FORGE.replace("printf", "yes").format("flood")])
async def test_a_forged_length_ends_the_sandbox_as_the_agents_doing(
    settings: BackendSettings, then: str
) -> None:
    too_long = "E\\0\\0\\0\\143\\177\\377\\377\\377x"
    async with attacked(settings) as victim:
        with pytest.raises(SandboxGone) as caught:
            await victim.exec(FORGE.format(too_long) + then + "sleep 20", timeout_s=30)
        assert caught.value.by_agent


async def test_a_last_word_that_is_taken_away_is_learnt_from_the_exit_code(
    settings: BackendSettings,
) -> None:
    garble = """
    for fd in /proc/1/fd/*; do
      [ -p $fd ] || continue
      case $(grep ^flags: /proc/1/fdinfo/${fd##*/}) in
        *1) cat $fd > /dev/null & cat $fd > /dev/null & cat $fd > /dev/null & ;;
        *) (sleep 1; head -c 100 /dev/zero > $fd) & ;;
      esac
    done
    sleep 20"""
    async with attacked(settings) as victim:
        with pytest.raises(SandboxGone) as caught:
            await victim.exec(garble, timeout_s=60)
        assert caught.value.by_agent


UNREADABLE = {
    "pipe": "mkfifo",
    "link": "mkfifo /pipe; ln -s /pipe",
    "endless": "truncate -s 1T",
}
ENGINE_USES: dict[str, Callable[[Sandbox], Awaitable[object]]] = {
    "exec": lambda box: box.exec(["true"], timeout_s=9, session=None, trusted=True),
    "read": lambda box: box.read("/etc/hostname", max_bytes=100, trusted=True),
    "pause": lambda box: _pause(box),
    "changes": lambda box: box.changes(suspects="x"),
}


async def _pause(sandbox: Sandbox) -> None:
    async with sandbox.pause():
        pass


@pytest.mark.parametrize(
    ("table", "use", "how"),
    [
        ("passwd", "exec", "endless"),
        ("passwd", "changes", "link"),
        ("group", "pause", "pipe"),
        ("group", "read", "pipe"),
    ],
)
async def test_tables_of_users_that_would_hold_the_engine_up_end_the_sandbox(
    settings: BackendSettings, table: str, use: str, how: str
) -> None:
    async with attacked(settings) as victim:
        path = f"/etc/{table}"
        await victim.exec(f"rm {path}; {UNREADABLE[how]} {path}", timeout_s=10)
        # The supervisor, which reads them too, is not held up; the daemon would be for good.
        as_root = await victim.exec(["id", "-u"], timeout_s=30, session=None, user="0")
        assert as_root.text == "0\n"
        with anyio.fail_after(60), pytest.raises(SandboxGone, match=path) as caught:
            await ENGINE_USES[use](victim)
        assert caught.value.by_agent


async def test_the_host_file_system_is_out_of_reach(settings: BackendSettings) -> None:
    async with attacked(settings) as victim:
        result = await victim.exec(
            "mount -t tmpfs none /mnt; mknod /dev/sda9 b 8 0 && cat /dev/sda9; ls /.hermes/..",
            timeout_s=10,
        )
        assert "permission denied" in result.stderr_text.lower()
        with pytest.raises(SandboxPermissionDenied):
            await victim.write("/.hermes/outpost.pyc", b"x")
