"""The singularity backend over the stub of Apptainer: images, errors, limits, kills, commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

from hermes_rl.backends.singularity import SingularityBackend, create_backend
from hermes_rl.errors import BackendUnavailable, CreateError, ImageNotFound, Unsupported
from hermes_rl.sandbox import BackendSettings, Capability, SandboxSpec
from hermes_rl.testing.hosting import hosted

from .apptainer_world import World, apptainer_world
from .bubblewrap_here import require_bubblewrap
from .evaluate_process import environment, processes_with, run

QUICK_S = 60.0


@pytest.fixture(scope="module", autouse=True)
def bubblewrap_works() -> None:
    require_bubblewrap()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "world").mkdir()
    with apptainer_world(tmp_path / "world") as world:
        yield world


def settings(world: World, **options: object) -> BackendSettings:
    """Settings of a run that keeps its images apart, not its interpreter."""
    cache_dir = world.directory / "cache"
    if not cache_dir.exists():
        cache_dir.mkdir()
        shared = BackendSettings(run_id="x").cache_dir
        for runtime in shared.glob("runtime-*"):
            (cache_dir / runtime.name).symlink_to(runtime)
    return BackendSettings(run_id="test", cache_dir=cache_dir, options=options)


@pytest_asyncio.fixture
async def backend(world: World) -> AsyncIterator[SingularityBackend]:
    async with hosted(create_backend(settings(world, image=str(world.image)))) as backend:
        yield backend


async def until(count: int, *words: str) -> None:
    """Wait until so many processes have these words on their command lines."""
    with anyio.fail_after(QUICK_S):
        while len(processes_with(words)) != count:
            await anyio.sleep(0.05)


# What is in a sandbox


async def test_it_declares_what_the_machine_allows(backend: SingularityBackend) -> None:
    assert backend.capabilities == {
        Capability.DOCKERFILE,
        Capability.IMAGES,
        Capability.ISOLATION,
        Capability.NETWORK_NONE,
        Capability.NETWORK_PUBLIC,
        Capability.PTY,
    }


async def test_a_task_s_environment_is_on_no_command_line(
    backend: SingularityBackend, world: World
) -> None:
    sandbox = await backend.create(SandboxSpec(env={"TOKEN": "sesame"}))
    assert (await sandbox.exec("echo $TOKEN", timeout_s=QUICK_S)).text == "sesame\n"
    assert "sesame" not in (world.directory / "calls.jsonl").read_text()
    assert processes_with(["sesame"]) == []


async def test_the_engine_s_environment_and_files_are_out_of_reach(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    refused = {
        *("OPENAI_API_KEY", "APPTAINERENV_KEY", "SINGULARITYENV_KEY"),
        *("APPTAINER_BIND", "SINGULARITY_BINDPATH"),
    }
    for name in refused:
        monkeypatch.setenv(name, "sesame")
    (tmp_path / "secret").write_text("sesame")
    async with create_backend(settings(world, image=str(world.image))) as backend:
        sandbox = await backend.create(SandboxSpec())
        seen = await sandbox.exec(
            f"env; cat {tmp_path}/secret; ls -A ~ /tmp; cat /proc/*/environ",
            timeout_s=QUICK_S,
            merge_stderr=True,
        )
        assert "sesame" not in seen.text
        assert "No such file" in seen.text
        assert (await sandbox.exec(f"kill -0 {os.getpid()}", timeout_s=QUICK_S)).exit_code != 0
    for call in world.calls("exec"):
        assert not refused & set(call["env"])


async def test_the_kernels_settings_cannot_be_written(backend: SingularityBackend) -> None:
    sandbox = await backend.create(SandboxSpec())
    write = (
        "for f in kernel/core_pattern vm/swappiness; do (exec 3>> /proc/sys/$f) && echo $f; done"
    )
    assert (await sandbox.exec(write, timeout_s=QUICK_S)).text == ""


async def test_without_network_there_is_only_loopback(backend: SingularityBackend) -> None:
    count = "tail -n +3 /proc/net/dev | wc -l; ls /sys/class/net; cat /sys/class/net/lo/ifindex"
    apart = await backend.create(SandboxSpec(network="none"))
    assert (await apart.exec(count, timeout_s=QUICK_S)).text == "1\nlo\n1\n"


async def test_its_supervisor_survives_and_sandboxes_share_no_files(
    backend: SingularityBackend,
) -> None:
    one, two = await backend.create(SandboxSpec()), await backend.create(SandboxSpec())
    await one.exec("touch /etc/mine /tmp/mine; kill -9 1; kill -9 -1", timeout_s=QUICK_S)
    seen = await one.exec("ls /etc/mine /tmp/mine", timeout_s=QUICK_S)
    assert seen.text == "/etc/mine\n/tmp/mine\n"
    assert (await two.exec("ls /etc/mine /tmp/mine", timeout_s=QUICK_S)).exit_code != 0


# Images


async def test_an_image_is_fetched_once_for_all_and_for_later_runs(world: World) -> None:
    world.publish("tools/app", {"WorkingDir": "/srv/app"}, **{"etc/marked": "yes"})
    boxes: list[str] = []

    async def start(backend: SingularityBackend) -> None:
        sandbox = await backend.create(SandboxSpec(image="tools/app:1"))
        boxes.append((await sandbox.exec("pwd; cat /etc/marked", timeout_s=QUICK_S)).text)

    for _ in range(2):
        async with create_backend(settings(world)) as backend, anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(start, backend)
    assert boxes == ["/srv/app\nyes"] * 6
    (call,) = world.calls("build")
    assert call["argv"][2] == "docker://tools/app:1"


async def test_the_images_own_command_is_started_if_asked_for(world: World) -> None:
    world.publish("server", {"Entrypoint": ["sh", "-c", "touch /started; exec sleep 60"]})
    async with create_backend(settings(world)) as backend:
        sandbox = await backend.create(SandboxSpec(image="server", image_command=True))
        there = await sandbox.exec(
            "until [ -e /started ]; do sleep 0.1; done", timeout_s=QUICK_S, session=None
        )
        assert there.exit_code == 0
        with pytest.raises(Unsupported, match="has a Dockerfile"):
            await backend.create(SandboxSpec(dockerfile_dir=world.directory, image_command=True))


async def test_a_dockerfile_that_only_adds_is_followed(
    backend: SingularityBackend, world: World, tmp_path: Path
) -> None:
    (tmp_path / "seed").write_text("a word")
    file = tmp_path / "Dockerfile"
    file.write_text(f"FROM {world.image}\nWORKDIR /app/x\nENV MARK=here\nCOPY seed data/\n")
    sandbox = await backend.create(SandboxSpec(dockerfile_dir=tmp_path))
    seen = await sandbox.exec("pwd; echo $MARK; cat data/seed", timeout_s=QUICK_S)
    assert seen.text == "/app/x\nhere\na word"
    file.write_text(f"FROM {world.image}\nRUN make\n")
    with pytest.raises(Unsupported, match=r"The singularity backend cannot build .*: RUN make"):
        await backend.create(SandboxSpec(dockerfile_dir=tmp_path))


@pytest.mark.parametrize(
    ("image", "kind", "told"),
    [
        ("nosuch:1", ImageNotFound, "Check its name and tag"),
        ("unreachable.example/x", BackendUnavailable, "The pull failed.*Check the network"),
        ("/nosuch.sif", ImageNotFound, "Name a .sif file or a sandbox directory that does"),
        ("/proc/version.sif", ImageNotFound, "does not exist on this machine"),
        ("JUNK", CreateError, "apptainer build IMAGE.sif"),
    ],
)
async def test_an_image_that_cannot_be_had_names_the_fix(
    backend: SingularityBackend, world: World, image: str, kind: type[Exception], told: str
) -> None:
    junk = world.directory / "junk.sif"
    junk.write_text("nothing of the kind")
    with pytest.raises(kind, match=told) as caught:
        await backend.create(SandboxSpec(image=str(junk) if image == "JUNK" else image))
    assert "Traceback" not in str(caught.value)
    works = await backend.create(SandboxSpec())
    assert (await works.exec("echo on", timeout_s=QUICK_S)).text == "on\n"


async def test_a_cancelled_fetch_leaves_no_process_and_no_file(world: World) -> None:
    world.publish("app", {})
    (world.directory / "slow").touch()
    made = settings(world)
    async with create_backend(made) as backend:
        with pytest.raises(CreateError, match="not ready within 1 s"):
            await backend.create(SandboxSpec(image="app", build_timeout_s=1.0))
    await until(0, str(world.directory), "build")
    left = [path.name for path in (made.cache_dir / "singularity").iterdir()]
    assert [name for name in left if not name.endswith(".lock")] == []


async def test_an_image_that_is_there_does_not_wait_for_fetches(world: World) -> None:
    for name in ("ready", "one", "two"):
        world.publish(name, {})
    async with create_backend(settings(world)) as backend:
        await backend.create(SandboxSpec(image="ready"))
        (world.directory / "slow").touch()
        async with anyio.create_task_group() as group:
            for name in ("one", "two"):
                group.start_soon(backend.create, SandboxSpec(image=name))
            with anyio.fail_after(QUICK_S):
                while len(world.calls("build")) < 3:
                    await anyio.sleep(0.05)
                sandbox = await backend.create(SandboxSpec(image="ready"))
            assert (await sandbox.exec("echo on", timeout_s=QUICK_S)).text == "on\n"
            group.cancel_scope.cancel()


async def test_what_a_killed_engine_fetched_is_gone_after_the_next_fetch(world: World) -> None:
    world.publish("app", {})
    (world.directory / "slow").touch()
    made = settings(world)
    cache = made.cache_dir / "singularity"
    async with create_backend(made) as backend, anyio.create_task_group() as group:
        group.start_soon(backend.create, SandboxSpec(image="app"))
        with anyio.fail_after(QUICK_S):
            while not world.calls("build"):
                await anyio.sleep(0.05)
        (scratch,) = cache.glob(".build-*")
        group.cancel_scope.cancel()
    assert not scratch.exists()
    (scratch / "tmp1").mkdir(parents=True)
    (scratch / "tmp1" / "image.sif").write_text("half of it")
    (world.directory / "slow").unlink()
    async with create_backend(made) as backend:
        await backend.create(SandboxSpec(image="app"))
    assert list(cache.glob(".build-*")) == []


@pytest.mark.parametrize("output", ["holding", "quiet"])
async def test_what_a_failed_fetch_started_is_killed_with_it(world: World, output: str) -> None:
    (world.directory / "straggler").write_text(output)
    async with create_backend(settings(world)) as backend:
        limit_s = 2.0 if output == "holding" else QUICK_S
        with pytest.raises(CreateError):
            await backend.create(SandboxSpec(image="nosuch", build_timeout_s=limit_s))
    await until(0, "sleep", "515151")


# Limits


async def test_where_limits_hold_every_sandbox_has_them(world: World) -> None:
    (world.directory / "limits").touch()
    async with create_backend(settings(world, image=str(world.image))) as backend:
        assert Capability.MEMORY_LIMIT in backend.capabilities
        await backend.create(SandboxSpec(cpus=1.5, memory_mb=256))
        await backend.create(SandboxSpec())
    limited, usual = world.starts()
    for words in (["--cpus", "1.5"], ["--memory", str(256 << 20)], ["--pids-limit", "4096"]):
        assert limited[limited.index(words[0]) + 1] == words[1]
    assert usual[usual.index("--memory") + 1] == str(4096 << 20)
    assert "--cpus" not in usual


async def test_where_no_limits_hold_a_task_is_refused_or_runs_without(world: World) -> None:
    limited = SandboxSpec(cpus=1, memory_mb=256)
    async with create_backend(settings(world, image=str(world.image))) as backend:
        with pytest.raises(Unsupported, match="lacks cpu_limit, memory_limit"):
            await backend.create(limited)
    ignoring = settings(world, image=str(world.image), task_limits="ignore")
    async with create_backend(ignoring) as backend:
        sandbox = await backend.create(limited)
        assert (await sandbox.exec("echo on", timeout_s=QUICK_S)).text == "on\n"
    assert "--memory" not in world.starts()[-1]


# Ends


ENGINE = """
import anyio, sys
from hermes_rl.sandbox import *

async def main():
    settings = BackendSettings(run_id="victim", options={"image": sys.argv[1]})
    async with open_backend("singularity", settings) as backend:
        box = await backend.create(SandboxSpec())
        await box.exec("setsid sleep 424242 >/dev/null 2>&1 &", timeout_s=60)
        print(box.id, flush=True)
        await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.parametrize("with_helpers", [False, True], ids=["engine", "engine_and_helpers"])
async def test_an_engine_that_is_killed_leaves_nothing(
    world: World, with_helpers: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    words = [sys.executable, "-c", ENGINE, str(world.image)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as engine:
        try:
            assert engine.stdout is not None
            id = engine.stdout.readline().strip()
            listed = await anyio.to_thread.run_sync(_sandboxes, "list", tmp_path)
            threads = Path(f"/proc/{engine.pid}/task").glob("*/children")
            helpers = [pid for thread in threads for pid in thread.read_text().split()]
        finally:
            engine.kill()
            for helper in helpers if with_helpers else []:
                os.kill(int(helper), signal.SIGKILL)
    assert f"{id}  running" in listed
    assert helpers
    await until(0, "sleep", "424242")
    await until(0, str(world.image), "outpost")
    if with_helpers:
        assert "owner dead" in await anyio.to_thread.run_sync(_sandboxes, "list", tmp_path)
    cleaned = await anyio.to_thread.run_sync(_sandboxes, "clean", tmp_path)
    assert "singularity: removed" in cleaned
    assert "no sandboxes" in await anyio.to_thread.run_sync(_sandboxes, "list", tmp_path)
    assert list(place.glob("hermes_rl-*/*")) == []


def _sandboxes(action: str, cwd: Path) -> str:
    done = run(cwd, "sandboxes", action, "--backend", "singularity")
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_what_only_a_container_can_remove_is_left_to_one_and_told_when_it_is_gone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    dead = tmp_path / f"hermes_rl-{os.getuid()}" / "dead"
    stuck = dead / "singularity-0123456789" / "overlay"
    stuck.mkdir(parents=True, mode=0o700)
    dead.parent.chmod(0o700)
    (dead / "lock").write_text("victim\nnobody\n")
    # A mount point is what even root cannot remove from outside, like another user's files.
    words = ["bwrap", "--unshare-user-try", "--dev-bind", "/", "/", "--tmpfs", str(stuck)]
    words += [sys.executable, "-m", "hermes_rl", "sandboxes", "clean", "--backend", "singularity"]
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            words, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
        )
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "singularity: removed 0\n"  # our stand-in has no root of its own either
    scrubs = [call["argv"] for call in world.calls("exec") if "--remove=/mnt/dead" in call["argv"]]
    assert f"{dead.parent}:/mnt" in scrubs[0]


async def test_a_container_removes_what_it_is_given(world: World, tmp_path: Path) -> None:
    (tmp_path / "left" / "overlay").mkdir(parents=True)
    (tmp_path / "left" / "overlay" / "file").write_text("another user's")
    async with create_backend(settings(world, image=str(world.image))) as backend:
        await backend._connected()._scrub(tmp_path / "left")
    assert list(tmp_path.glob("left*")) == []


@pytest.mark.parametrize("trouble", ["no program", "refused"])
async def test_a_removal_that_fails_is_told_and_leaves_no_log(
    world: World, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    async with create_backend(settings(world, image=str(world.image))) as backend:
        sandbox = await backend.create(SandboxSpec())
        top = sandbox.directory.top
        log = top.with_suffix(".log")
        assert log.exists()
        _leave_behind(top)
        if trouble == "refused":
            (world.directory / "no_namespaces").touch()
        else:
            (world.bin / "apptainer").unlink()
        with anyio.fail_after(QUICK_S):
            await sandbox.close()
        assert f"files in {top}" in caplog.text
        assert not log.exists()


async def test_a_removal_that_hangs_ends_and_the_other_sandboxes_are_closed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with create_backend(settings(world, image=str(world.image))) as backend:
        stuck, other = [await backend.create(SandboxSpec()) for _ in range(2)]
        _leave_behind(stuck.directory.top)
        (world.directory / "stuck").touch()
    assert f"files in {stuck.directory.top} took over 5 s" in caplog.text
    assert not stuck.directory.top.with_suffix(".log").exists()
    assert not other.directory.top.exists()
    assert processes_with([str(world.directory), "exec"]) == []


def _leave_behind(top: Path) -> None:
    """Make removing a sandbox's directory fail from outside, whoever we are."""
    top.rename(top.with_suffix(".away"))
    top.write_text("no directory")


async def test_a_container_that_is_killed_is_gone_and_not_by_the_agent(
    backend: SingularityBackend, world: World
) -> None:
    sandbox = await backend.create(SandboxSpec())
    assert (await sandbox.exec("echo on", timeout_s=QUICK_S)).text == "on\n"
    (line,) = [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.read_bytes().startswith(b"bwrap\0") and str(world.image).encode() in _read(path)
    ]
    os.kill(int(line), signal.SIGKILL)
    with anyio.fail_after(QUICK_S), pytest.raises(Exception, match="killed from outside") as gone:
        await sandbox.exec("sleep 60", timeout_s=60)
    assert gone.value.by_agent is False  # type: ignore[attr-defined]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# The doctor


async def test_the_doctor_says_what_works_and_what_does_not(world: World, tmp_path: Path) -> None:
    done = await anyio.to_thread.run_sync(lambda: run(tmp_path, "doctor", "singularity"))
    assert done.returncode == 0, done.stdout
    for told in (f"apptainer 1.4, {world.bin}/apptainer", "memory_limit: not here"):
        assert told in done.stdout
    (world.directory / "no_namespaces").touch()
    done = await anyio.to_thread.run_sync(lambda: run(tmp_path, "doctor", "singularity"))
    assert done.returncode != 0
    assert "user.max_user_namespaces" in done.stdout
    assert "apptainer-suid" in done.stdout
    (world.directory / "version").write_text("apptainer version 1.0.3")
    done = await anyio.to_thread.run_sync(lambda: run(tmp_path, "doctor", "singularity"))
    assert done.returncode != 0
    assert "apptainer 1.1 or newer is needed" in done.stdout


async def test_without_the_program_the_fix_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    backend = create_backend(BackendSettings(run_id="test"))
    (check,) = await backend.doctor()
    assert not check.ok
    assert "Install Apptainer" in check.fix
    with pytest.raises(BackendUnavailable, match="Install Apptainer"):
        async with backend:
            pass
