"""The local backend against the conformance suite, and what is its own."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import pytest_asyncio

from hermes_rl.backends.local import LocalBackend, create_backend
from hermes_rl.backends.local_directories import list_records
from hermes_rl.backends.ownership import Owner
from hermes_rl.errors import (
    BackendUnavailable,
    Capacity,
    ConfigError,
    CreateError,
    SandboxGone,
    Unsupported,
)
from hermes_rl.sandbox import Backend, BackendSettings, Capability, SandboxSpec, open_backend
from hermes_rl.testing.hosting import hosted
from hermes_rl.testing.leaks import leak_census
from hermes_rl.testing.sandbox_conformance import SandboxConformance

ENGINE = Path(__file__).with_name("local_engine.py")
PATIENCE_S = 60.0


class TestLocalSandbox(SandboxConformance):
    python = (sys.executable,)

    @pytest.fixture(scope="class")
    @classmethod
    def unopened_backend(cls) -> Backend:
        return open_backend("local", BackendSettings(run_id="conformance"))


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    async with hosted(create_backend(BackendSettings(run_id="test"))) as backend:
        yield backend


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = path.read_text().rpartition(")")[2].split()[1]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid:
            found.append(int(path.parent.name))
    return found


def helpers() -> list[int]:
    """The helper processes of backends in this process."""
    return [
        pid
        for pid in children(os.getpid())
        if b"nursery.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


async def test_it_says_once_and_plainly_that_it_does_not_isolate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        async with create_backend(BackendSettings(run_id="test")) as backend:
            for _ in range(2):
                await (await backend.create(SandboxSpec())).close()
    said = [record.message for record in caplog.records if "does not isolate" in record.message]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("spec", "capability"),
    [
        (SandboxSpec(image="debian"), Capability.IMAGES),
        (SandboxSpec(dockerfile_dir=Path("/x")), Capability.DOCKERFILE),
        (SandboxSpec(memory_mb=100), Capability.MEMORY_LIMIT),
        (SandboxSpec(cpus=1), Capability.CPU_LIMIT),
        (SandboxSpec(pids=100), Capability.PIDS_LIMIT),
        (SandboxSpec(network="none"), Capability.NETWORK_NONE),
        (SandboxSpec(user="nobody"), Capability.USERS),
        (SandboxSpec(gpus=1), Capability.GPU),
    ],
    ids=str,
)
async def test_what_it_cannot_honour_it_refuses(
    backend: LocalBackend, spec: SandboxSpec, capability: Capability
) -> None:
    with pytest.raises(Unsupported, match="docker") as caught:
        await backend.create(spec)
    assert caught.value.capability == capability


async def test_helpers_that_cannot_be_started_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python3")
    with pytest.raises(BackendUnavailable, match="cannot start its helper"):
        async with create_backend(BackendSettings(run_id="no-helpers")):
            pass
    assert "no-helpers" not in {record.run for record in list_records()}


async def test_a_default_without_network_is_refused_too() -> None:
    settings = BackendSettings(run_id="test", network="none")
    async with create_backend(settings) as backend:
        with pytest.raises(Unsupported):
            await backend.create(SandboxSpec())


def test_unknown_options_are_named() -> None:
    with pytest.raises(ConfigError, match="isolaton"):
        create_backend(BackendSettings(run_id="test", options={"isolaton": "none"}))


async def test_an_unopened_backend_says_so() -> None:
    with pytest.raises(ConfigError, match="async with"):
        await create_backend(BackendSettings(run_id="test")).create(SandboxSpec())


async def test_secrets_of_the_engine_do_not_reach_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-secret")
    monkeypatch.setenv("LC_TIME", "C")
    async with create_backend(BackendSettings(run_id="test")) as backend:
        sandbox = await backend.create(SandboxSpec(env={"GIVEN": "1"}))
        text = (
            await sandbox.exec("env; cat /proc/$PPID/environ | tr '\\0' '\\n'", timeout_s=30)
        ).text
        python = [sys.executable, "-c", "import os; print(sorted(os.environ))"]
        names = (await sandbox.exec(python, timeout_s=30, session=None)).text
    assert "secret" not in text
    assert "LC_TIME=C" in text
    for name in ("GIVEN", "HOME", "TMPDIR", "PATH", "LANG"):
        assert repr(name) in names


async def test_directories_are_its_own_and_gone_at_close(backend: LocalBackend) -> None:
    one, two = await backend.create(SandboxSpec()), await backend.create(SandboxSpec())
    places = [
        (
            await box.exec("echo $HOME; pwd; echo $TMPDIR; touch file; mktemp", timeout_s=30)
        ).text.split()
        for box in (one, two)
    ]
    for home, cwd, tmp, made in places:
        assert home == cwd
        assert made.startswith(tmp)
        assert Path(home).stat().st_mode & 0o777 == 0o755
    assert not set(places[0]) & set(places[1])
    await one.close()
    assert not Path(places[0][0]).parent.exists()
    assert Path(places[1][0], "file").exists()
    await two.close()
    assert not Path(places[1][0]).parent.exists()


async def test_a_stubborn_tree_is_removed_too(backend: LocalBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    home = Path(sandbox.home)
    await sandbox.exec("mkdir -p a/b; touch a/b/c; chmod 0 a/b a; ln -s / root", timeout_s=30)
    await sandbox.close()
    assert not home.exists()
    assert Path("/etc").is_dir()


async def test_many_files_are_removed_without_holding_anyone_up(backend: LocalBackend) -> None:
    for count in (20_000, 80_000, 320_000):  # so many that we see them being removed
        sandbox = await backend.create(SandboxSpec())
        made = await sandbox.exec(
            [sys.executable, "-c", f"for i in range({count}): open(str(i), 'w').close()"],
            timeout_s=600,
        )
        assert made.exit_code == 0, made.stderr_text
        keeper = int((await sandbox.exec("echo $PPID", timeout_s=PATIENCE_S)).text)
        remover = await killed_and_stopped_removing(keeper, sandbox.directory.home)
        if remover is not None:
            break
    assert remover is not None
    try:
        others = [await backend.create(SandboxSpec()) for _ in range(2 * len(helpers()))]
        for other in others:
            assert (await other.exec("echo on", timeout_s=PATIENCE_S)).text == "on\n"
            await other.close()
        with anyio.fail_after(PATIENCE_S):
            await sandbox.close()
        assert sandbox.directory.home.exists()
    finally:
        os.kill(remover, signal.SIGCONT)
    with anyio.fail_after(PATIENCE_S):
        while sandbox.directory.top.exists():
            await anyio.sleep(0.05)


async def killed_and_stopped_removing(keeper: int, home: Path) -> int | None:
    """Kill a keeper and stop the process that removes its files; None if that was too quick."""
    helper = next(pid for pid in helpers() if keeper in children(pid))
    known = children(helper)
    os.kill(keeper, signal.SIGKILL)
    with anyio.move_on_after(PATIENCE_S):
        while home.exists():
            for remover in set(children(helper)) - set(known):
                os.kill(remover, signal.SIGSTOP)
                await anyio.sleep(0.1)
                return remover if home.exists() else None
            await anyio.lowlevel.checkpoint()
    return None


async def test_transfers_that_a_sandbox_stops_keep_no_other_from_its_own(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.backends.outpost.transfer.STANDSTILL_S", 0.3)
    (tmp_path / "endless").touch()
    os.truncate(tmp_path / "endless", 1 << 40)
    (tmp_path / "small").write_text("small")
    neighbour = await backend.create(SandboxSpec())
    async with anyio.create_task_group() as tasks:
        for _ in range(backend.limits.transfers or 0):
            hostile = await backend.create(SandboxSpec())
            keeper = int((await hostile.exec("echo $PPID", timeout_s=PATIENCE_S)).text)
            tasks.start_soon(hostile.upload, tmp_path / "endless", "endless")
            with anyio.fail_after(PATIENCE_S):
                while not (transfer := children(keeper)):
                    await anyio.sleep(0.01)
            os.kill(transfer[0], signal.SIGSTOP)
        with anyio.fail_after(PATIENCE_S):
            await neighbour.upload(tmp_path / "small", "small")
            await neighbour.download("small", tmp_path / "copy")
        tasks.cancel_scope.cancel()
    assert (tmp_path / "copy").read_text() == "small"


async def test_a_transfer_that_is_stopped_and_goes_on_is_whole(
    backend: LocalBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.backends.outpost.transfer.STANDSTILL_S", 0.02)
    data = os.urandom(1 << 20) * 24
    (tmp_path / "data").write_bytes(data)
    sandbox = await backend.create(SandboxSpec())
    keeper = int((await sandbox.exec("echo $PPID", timeout_s=PATIENCE_S)).text)

    async def stop_and_continue() -> None:
        while True:
            for pid in children(keeper):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                    await anyio.sleep(0.05)
                    os.kill(pid, signal.SIGCONT)
            await anyio.sleep(0.05)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop_and_continue)
        await sandbox.upload(tmp_path / "data", "data")
        await sandbox.download("data", tmp_path / "copy")
        tasks.cancel_scope.cancel()
    assert (tmp_path / "copy").read_bytes() == data


async def test_a_working_directory_below_home_is_made(backend: LocalBackend) -> None:
    sandbox = await backend.create(SandboxSpec(workdir="work/here"))
    assert (await sandbox.exec("pwd", timeout_s=30)).text == f"{sandbox.home}/work/here\n"
    with pytest.raises(CreateError, match="/no/such"):
        await backend.create(SandboxSpec(workdir="/no/such/place"))


async def test_nothing_is_left_of_a_run(backend: LocalBackend) -> None:
    async with leak_census(), create_backend(BackendSettings(run_id="census")) as other:
        for _ in range(4):
            sandbox = await other.create(SandboxSpec())
            await sandbox.exec("(setsid sleep 60 &) ; sleep 60 & nohup sleep 60 &", timeout_s=30)
        with anyio.move_on_after(0.1):
            await sandbox.exec("sleep 60", timeout_s=60)


async def test_an_exception_in_the_body_is_the_one_that_comes_out() -> None:
    async def fail() -> None:
        async with create_backend(BackendSettings(run_id="test")) as backend:
            await backend.create(SandboxSpec())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def test_a_killed_supervisor_is_the_agents_doing(backend: LocalBackend) -> None:
    sandbox, neighbour = await backend.create(SandboxSpec()), await backend.create(SandboxSpec())
    home = Path(sandbox.home)
    started = await sandbox.exec("setsid sleep 300 >/dev/null 2>&1 & echo $!", timeout_s=30)
    with pytest.raises(SandboxGone) as caught:
        await sandbox.exec("kill -9 $PPID; sleep 300", timeout_s=60)
    assert (caught.value.cause, caught.value.by_agent) == ("killed", True)
    assert not lives(int(started.text))
    assert not home.exists()
    await sandbox.close()
    assert (await neighbour.exec("echo unharmed", timeout_s=30)).text == "unharmed\n"


async def test_limiting_the_supervisor_is_the_agents_doing(backend: LocalBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    lower = "import os, resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (9, 9))"

    async def attack() -> None:
        while True:
            await sandbox.exec([sys.executable, "-c", lower], timeout_s=PATIENCE_S)

    with anyio.fail_after(PATIENCE_S), pytest.raises(SandboxGone, match="limited the res") as gone:
        await attack()
    assert (gone.value.by_agent, gone.value.retryable) == (True, False)


async def test_a_stopped_supervisor_goes_on_at_once(backend: LocalBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    result = await sandbox.exec("kill -STOP $PPID; echo on", timeout_s=20)
    assert (result.text, result.timed_out) == ("on\n", False)
    start = time.monotonic()
    result = await sandbox.exec("kill -STOP $PPID; sleep 300", timeout_s=0.5)
    assert (result.timed_out, result.exit_code) == (True, 124)
    assert time.monotonic() - start < 20


async def test_a_supervisor_stopped_over_and_over_does_not_hold_up_anyone(
    backend: LocalBackend,
) -> None:
    sandbox = await backend.create(SandboxSpec())
    home = Path(sandbox.home)
    start = time.monotonic()
    result = await sandbox.exec("while :; do kill -STOP $PPID; done", timeout_s=0.5)
    assert (result.timed_out, result.exit_code) == (True, 124)
    assert time.monotonic() - start < 30
    start = time.monotonic()
    await sandbox.close()
    assert time.monotonic() - start < 30
    assert not home.exists()


async def test_entering_removes_what_dead_engines_left() -> None:
    command = [sys.executable, str(ENGINE), "idle"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        left = Path(engine.stdout.readline().split()[2]).parents[1]
        engine.kill()
    assert left.exists()
    end = time.monotonic() + PATIENCE_S
    while left.exists():
        assert time.monotonic() < end
        async with create_backend(BackendSettings(run_id="next")):
            with anyio.move_on_after(5):
                while left.exists():
                    await anyio.sleep(0.1)


async def test_no_room_for_another_sandbox_is_told_with_the_fix_and_harms_no_other(
    backend: LocalBackend,
) -> None:
    # One from each helper: one that is still starting would fail at that, not at forking.
    count = len(backend._connected()._nurseries)
    neighbours = [await backend.create(SandboxSpec()) for _ in range(count)]
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in helpers()}
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, hard))
    with pytest.raises(Capacity, match="ulimit -n") as full:
        await backend.create(SandboxSpec())
    assert full.value.retryable
    for neighbour in neighbours:
        assert (await neighbour.exec("echo lives", timeout_s=PATIENCE_S)).text == "lives\n"
    for pid, limit in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)
    later = await backend.create(SandboxSpec())
    assert (await later.exec("echo again", timeout_s=PATIENCE_S)).text == "again\n"
    mine = str(Owner.current())
    left = {record.id for record in await backend.records() if record.owner == mine}
    assert left == {later.id, *(neighbour.id for neighbour in neighbours)}


async def test_an_environment_too_large_is_told_at_once_and_leaves_nothing(
    backend: LocalBackend,
) -> None:
    with pytest.raises(CreateError, match=r"environment has 2.* takes 131072") as error:
        await backend.create(SandboxSpec(env={"LONG": 200_000 * "x"}))
    assert not error.value.retryable
    mine = str(Owner.current())
    assert not [record for record in await backend.records() if record.owner == mine]


async def test_loss_of_a_helper_is_the_end_of_its_sandboxes_only() -> None:
    async with create_backend(BackendSettings(run_id="test")) as backend:
        before = helpers()
        boxes = [await backend.create(SandboxSpec()) for _ in range(2 * len(before))]
        pids = [
            int((await box.exec("setsid sleep 300 >/dev/null 2>&1 & echo $!", timeout_s=30)).text)
            for box in boxes
        ]
        os.kill(before[0], signal.SIGKILL)
        outcomes = []
        for box in boxes:
            try:
                with anyio.fail_after(PATIENCE_S):
                    await box.exec("sleep 0.5", timeout_s=30)
                outcomes.append(True)
            except SandboxGone as gone:
                outcomes.append(gone.by_agent or not gone.retryable)
        if len(before) > 1:
            assert outcomes.count(False) == 2
        end = time.monotonic() + PATIENCE_S
        while [pid for pid, fine in zip(pids, outcomes, strict=True) if lives(pid) != fine]:
            assert time.monotonic() < end
            await anyio.sleep(0.05)
        replacement = await backend.create(SandboxSpec())
        assert (await replacement.exec("echo on", timeout_s=30)).text == "on\n"
        assert len(helpers()) == len(before)


async def test_many_boxes_do_not_mix(backend: LocalBackend) -> None:
    async def live(number: int) -> None:
        sandbox = await backend.create(SandboxSpec())
        await sandbox.exec(f"export N={number}; echo $N >file", timeout_s=60)
        for _ in range(3):
            assert (await sandbox.exec("cat file; echo $N", timeout_s=60)).text == f"{number}\n" * 2
        await sandbox.close()

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(live, number)


@pytest.mark.parametrize("moment", ["idle", "running", "streaming", "writing", "creating"])
async def test_a_killed_engine_leaves_no_process_and_no_directory(moment: str) -> None:
    command = [sys.executable, str(ENGINE), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        lines = [engine.stdout.readline().split() for _ in range(3)]
        await anyio.sleep(0.3)
        below = children(engine.pid)
        keepers = [keeper for helper in below for keeper in children(helper)]
        engine.kill()
    pids = [int(word) for line in lines for word in line[:2]]
    assert len(pids) == 6
    assert len(keepers) >= 3
    end = time.monotonic() + PATIENCE_S
    while any(map(lives, [*pids, *below, *keepers])):
        assert time.monotonic() < end
        await anyio.sleep(0.02)
    await create_backend(BackendSettings(run_id="sweeper")).sweep()
    for line in lines:
        assert not Path(line[2]).parent.parent.exists()


async def test_a_sweep_spares_the_living(backend: LocalBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    with subprocess.Popen(
        [sys.executable, str(ENGINE), "idle"], stdout=subprocess.PIPE, text=True
    ) as engine:
        assert engine.stdout is not None
        other = Path(engine.stdout.readline().split()[2])
        removed = await backend.sweep()
        assert not [path for path in removed if str(other).startswith(path)]
        assert other.exists()
        states = {record.id: record.verdict for record in await backend.records()}
        assert states[sandbox.id] == "keep"
        assert states[other.parent.name] == "keep"
        engine.kill()
    assert (await sandbox.exec("echo on", timeout_s=30)).text == "on\n"


async def test_what_the_first_sweep_took_is_told_once_to_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = tmp_path / f"hermes_rl-{os.getuid()}" / "dead"
    dead.mkdir(parents=True)
    (dead / "lock").write_text("victim\nnobody\n")
    async with hosted(create_backend(BackendSettings(run_id="test"))) as backend:
        with anyio.fail_after(PATIENCE_S):
            while dead.exists():  # nobody has asked yet
                await anyio.sleep(0.02)
        assert await backend.sweep() == [str(dead)]
        assert await backend.sweep() == []


async def test_a_cut_short_directory_is_swept_when_it_is_old(backend: LocalBackend) -> None:
    base = Path((await backend.create(SandboxSpec())).home).parents[2]
    young, old = base / "young-without-lock", base / "old-without-lock"
    young.mkdir()
    old.mkdir()
    os.utime(old, (1, 1))
    removed = await backend.sweep()
    assert str(old) in removed
    assert young.exists()
    young.rmdir()


async def test_doctor_names_what_is_missing(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert all(check.ok or check.optional for check in await backend.doctor())
    monkeypatch.setenv("PATH", "/nowhere")
    failed = [check for check in await backend.doctor() if not check.ok]
    assert "bash" in [check.name for check in failed if not check.optional]
    assert any("Install bash" in check.fix for check in failed)
