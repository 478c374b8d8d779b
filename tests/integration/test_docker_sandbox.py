"""Sandboxes in real containers: how they are made, what they keep, and how each of them ends."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conftest import require

pytest.importorskip("aiodocker", reason="needs hermes_rl[docker]")

from hermes_rl.backends.admission import StartTurns
from hermes_rl.backends.docker import create_backend
from hermes_rl.backends.docker_container import ContainerPlan, container_config
from hermes_rl.backends.docker_engine import DockerEngine
from hermes_rl.backends.ownership import DEADLINE_LABEL, OWNER_LABEL, RUN_LABEL, Owner
from hermes_rl.errors import (
    BackendUnavailable,
    ConfigError,
    CreateError,
    FileError,
    ImageNotFound,
    SandboxError,
    SandboxFileNotFound,
    SandboxFileTooLarge,
    SandboxGone,
    SandboxIsADirectory,
    Unsupported,
)
from hermes_rl.sandbox import BackendSettings, Capability, ExecResult, HealthCheck, Sandbox
from hermes_rl.testing.leaks import leak_census

from .docker_boxes import (
    BARE_IMAGE,
    EMPTY_IMAGE,
    TEST_IMAGE,
    box,
    containers_of,
    docker,
    gone_within,
    remove_volume,
    run_settings,
)

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("docker_image")]

ENGINE = Path(__file__).with_name("docker_engine_process.py")


@pytest.fixture
def settings(cache_dir: Path) -> Iterator[BackendSettings]:
    settings = run_settings(cache_dir)
    yield settings
    assert containers_of(settings.run_id) == {}, "the test left containers"


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Path]:
    """A build context; its image is removed afterwards."""
    marker = uuid.uuid4().hex
    (tmp_path / "Dockerfile").write_text(f"FROM {TEST_IMAGE}\nLABEL test-marker={marker}\n")
    yield tmp_path
    docker("rmi", *docker("images", "-q", "--filter", f"label=test-marker={marker}").split())


def _add_to(context: Path, *lines: str) -> None:
    with (context / "Dockerfile").open("a") as dockerfile:
        dockerfile.write("\n".join([*lines, ""]))


@asynccontextmanager
async def _sandbox(settings: BackendSettings, **fields: Any) -> AsyncIterator[Sandbox]:
    async with create_backend(settings) as backend:
        sandbox = await backend.create(box(**fields))
        try:
            yield sandbox
        finally:
            await sandbox.close()


def _inspect(sandbox: Sandbox, template: str) -> str:
    return docker("inspect", "--format", template, sandbox.id)


# Making


async def test_it_is_labelled_with_run_owner_and_deadline(settings: BackendSettings) -> None:
    async with _sandbox(settings, lease_s=100, labels={"task": "t"}) as sandbox:
        labels = {
            name: _inspect(sandbox, f'{{{{index .Config.Labels "{name}"}}}}')
            for name in (RUN_LABEL, OWNER_LABEL, DEADLINE_LABEL, "task")
        }
    assert labels[RUN_LABEL] == settings.run_id
    assert Owner.parse(labels[OWNER_LABEL]) == Owner.current()
    assert 80 < int(labels[DEADLINE_LABEL]) - time.time() <= 101
    assert labels["task"] == "t"


async def test_its_lease_does_not_begin_while_it_waits_for_its_turn(
    settings: BackendSettings,
) -> None:
    async with create_backend(replace(settings, max_starting=1)) as backend:
        sandboxes: list[Sandbox] = []

        async def create() -> None:
            sandboxes.append(await backend.create(box(lease_s=100)))

        await (await backend.create(box())).close()  # the image is looked up
        permit = backend._connected()._admission.start()
        async with anyio.create_task_group() as tasks, permit:
            tasks.start_soon(create)
            await anyio.sleep(3)
            let_go_s = time.time()
        deadline = _inspect(sandboxes[0], f'{{{{index .Config.Labels "{DEADLINE_LABEL}"}}}}')
        assert int(deadline) >= let_go_s + 100


async def test_limits_hold_inside(settings: BackendSettings) -> None:
    async with _sandbox(settings, memory_mb=128, pids=40, cpus=0.5) as sandbox:
        host = "{{.HostConfig.Memory}} {{.HostConfig.PidsLimit}} {{.HostConfig.NanoCpus}}"
        assert _inspect(sandbox, host) == f"{128 << 20} 40 500000000"
        forked = await sandbox.exec("for i in $(seq 100); do sleep 5 & done", timeout_s=60)
        assert "fork" in forked.stderr_text
        assert (await sandbox.exec("echo alive", timeout_s=60)).text == "alive\n"


@pytest.mark.parametrize(("network", "devices"), [("none", "lo"), ("public", "eth0 lo")])
async def test_the_network_is_what_the_spec_says(
    settings: BackendSettings, network: str, devices: str
) -> None:
    async with _sandbox(settings, network=network) as sandbox:
        listed = await sandbox.exec("ls /sys/class/net", timeout_s=60)
        found = [name for name in sorted(listed.text.split()) if name in ("eth0", "lo")]
    assert " ".join(found) == devices


async def test_the_images_working_directory_is_the_default(settings: BackendSettings) -> None:
    async with _sandbox(settings) as sandbox:
        assert (await sandbox.exec("pwd", timeout_s=60)).text == "/root\n"


async def test_a_working_directory_of_the_spec_is_made(settings: BackendSettings) -> None:
    async with _sandbox(settings, workdir="/new/place") as sandbox:
        assert (await sandbox.exec("pwd", timeout_s=60)).text == "/new/place\n"


async def test_commands_run_as_the_specs_user_with_its_home(settings: BackendSettings) -> None:
    async with _sandbox(settings, user="nobody", workdir="/tmp") as sandbox:
        result = await sandbox.exec("id -un; echo $HOME", timeout_s=60)
        assert result.text == "nobody\n/nonexistent\n"
        as_root = await sandbox.exec("id -u", timeout_s=60, user="root", session=None)
        assert as_root.text == "0\n"


async def test_a_user_the_image_lacks_is_named(settings: BackendSettings) -> None:
    async with create_backend(settings) as backend:
        with pytest.raises(CreateError, match="no user nosuch"):
            await backend.create(box(user="nosuch"))


async def test_commands_see_the_images_environment_not_the_interpreters(
    settings: BackendSettings, context: Path
) -> None:
    _add_to(context, "ENV A=image LD_LIBRARY_PATH=/opt/lib PYTHONPATH=/opt/py")
    async with _sandbox(settings, image=None, dockerfile_dir=context, env={"B": "spec"}) as sandbox:
        command = "env | grep -E '^(A|B|LD_|PYTHON|LC_|LANG)' | sort"
        result = await sandbox.exec(command, timeout_s=60)
        trusted = await sandbox.exec(command, timeout_s=60, trusted=True)
    wanted = "A=image\nB=spec\nLD_LIBRARY_PATH=/opt/lib\nPYTHONPATH=/opt/py\n"
    assert (result.text, trusted.text) == (wanted, wanted)


async def test_the_interpreter_cannot_be_written_or_remounted(settings: BackendSettings) -> None:
    async with _sandbox(settings) as sandbox:
        result = await sandbox.exec(
            "touch /.hermes/x; echo x >> /.hermes/outpost.py; rm -rf /.hermes/lib;"
            "mount -o remount,rw /.hermes; umount /.hermes; ls /.hermes/lib | wc -l",
            timeout_s=60,
        )
        assert int(result.text) > 1
        assert result.stderr_text.count("Read-only file system") >= 2


async def test_a_startup_command_runs_in_the_background(settings: BackendSettings) -> None:
    async with _sandbox(settings, startup="echo up > /tmp/up; exec sleep 1000") as sandbox:
        script = "until [ -s /tmp/up ]; do sleep 0.05; done; cat /tmp/up; pgrep -x sleep | wc -l"
        assert (await sandbox.exec(script, timeout_s=60)).text == "up\n1\n"


async def test_the_images_own_command_runs_when_asked_for(
    settings: BackendSettings, context: Path
) -> None:
    _add_to(context, 'ENTRYPOINT ["sleep"]', 'CMD ["1234"]', "HEALTHCHECK CMD false")
    fields: dict[str, Any] = {"image": None, "dockerfile_dir": context}
    async with create_backend(settings) as backend:
        with_it = await backend.create(box(image_command=True, **fields))
        without = await backend.create(box(**fields))
        command = "pgrep -fx 'sleep 1234' | wc -l"
        assert (await with_it.exec(command, timeout_s=60)).text == "1\n"
        assert (await without.exec(command, timeout_s=60)).text == "0\n"


async def test_it_is_handed_out_when_healthy(settings: BackendSettings) -> None:
    check = HealthCheck(command="test -e /tmp/up", interval_s=0.1, retries=600)
    async with _sandbox(settings, startup="sleep 1; touch /tmp/up", healthcheck=check) as sandbox:
        assert (await sandbox.exec("test -e /tmp/up", timeout_s=60)).exit_code == 0


async def test_one_that_never_gets_healthy_is_removed(settings: BackendSettings) -> None:
    check = HealthCheck(command="echo unwell; false", interval_s=0.05, retries=2)
    async with create_backend(settings) as backend:
        with pytest.raises(CreateError, match="unwell"):
            await backend.create(box(healthcheck=check))
        assert containers_of(settings.run_id) == {}


async def test_one_that_takes_too_long_to_start_is_removed(settings: BackendSettings) -> None:
    check = HealthCheck(command="false", interval_s=0.1, retries=10_000)
    async with create_backend(settings) as backend:
        with pytest.raises(CreateError, match="not up and healthy within 2 s"):
            await backend.create(box(healthcheck=check, start_timeout_s=2))
        assert containers_of(settings.run_id) == {}


async def test_an_image_removed_meanwhile_is_looked_up_again(settings: BackendSettings) -> None:
    name = f"hermes-test-gone:{uuid.uuid4().hex[:8]}"
    docker("tag", BARE_IMAGE, name)
    async with create_backend(settings) as backend:
        await (await backend.create(box(image=name))).close()
        known = backend._connected()._images._known
        known[name] = type(known[name])(id="sha256:" + "0" * 64, name=name)
        await (await backend.create(box(image=name))).close()
        docker("rmi", name)
        known[name] = type(known[name])(
            id="sha256:" + "0" * 64, name="hermes-test-nosuch.invalid/x"
        )
        with pytest.raises((ImageNotFound, BackendUnavailable)):
            await backend.create(box(image=name))


async def test_what_the_backend_cannot_do_is_refused_by_name(settings: BackendSettings) -> None:
    async with create_backend(settings) as backend:
        with pytest.raises(Unsupported, match="gpu") as caught:
            await backend.create(box(gpus=1))
        assert caught.value.capability == "gpu"
        with pytest.raises(Unsupported, match="bash"):
            await backend.create(box(image=EMPTY_IMAGE, needs=frozenset({Capability.BASH})))


async def test_without_an_image_the_error_names_the_flag(settings: BackendSettings) -> None:
    async with create_backend(settings) as backend:
        with pytest.raises(ConfigError, match=r"--env\.terminal_image"):
            await backend.create(box(image=None))


def test_an_unconnected_backend_says_so(settings: BackendSettings) -> None:
    with pytest.raises(ConfigError, match="async with"):
        create_backend(settings)._connected()


async def test_strict_hardening_takes_capabilities_and_keeps_users(cache_dir: Path) -> None:
    settings = run_settings(cache_dir, hardening="strict")
    async with _sandbox(settings) as sandbox:
        status = "grep -E 'CapBnd|NoNewPrivs' /proc/self/status"
        result = await sandbox.exec(status, timeout_s=60)
        assert result.text.split() == ["CapBnd:", "00000000000000e0", "NoNewPrivs:", "1"]
        other = await sandbox.exec("id -un", timeout_s=60, user="nobody", session=None, cwd="/")
        assert other.text == "nobody\n"
        assert (await sandbox.exec("sleep 60", timeout_s=0.3)).timed_out


async def test_a_read_only_sandbox_has_memory_to_write_to(cache_dir: Path) -> None:
    settings = run_settings(cache_dir, read_only=True)
    async with _sandbox(settings, workdir="/tmp") as sandbox:
        result = await sandbox.exec("touch /x; echo 1 > y; export A=1; cat y", timeout_s=60)
        assert (result.text, "Read-only" in result.stderr_text) == ("1\n", True)
        assert (await sandbox.exec("echo $A", timeout_s=60)).text == "1\n"


async def test_a_daemon_that_does_not_see_our_files_gets_them_in_a_volume(
    settings: BackendSettings, cache_dir: Path
) -> None:
    by_volume = run_settings(cache_dir, runtime="volume")
    volume = ""
    try:
        async with create_backend(by_volume) as backend, anyio.create_task_group() as tasks:
            for image in (TEST_IMAGE, EMPTY_IMAGE):
                tasks.start_soon(backend.create, box(image=image))
        async with _sandbox(by_volume) as sandbox:
            assert (await sandbox.exec("echo hi", timeout_s=60)).text == "hi\n"
            volume = _inspect(sandbox, "{{(index .Mounts 0).Name}}")
            assert _inspect(sandbox, "{{(index .Mounts 0).RW}}") == "false"
            blocked = await sandbox.exec("touch /.hermes/x", timeout_s=60)
            assert "Read-only" in blocked.stderr_text
    finally:
        if volume:
            remove_volume(volume)
    assert volume.startswith("hermes-runtime-")


async def test_that_the_daemon_does_not_see_our_files_is_noticed(
    settings: BackendSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a daemon elsewhere: what is bound does not exist there."""

    def misnamed(plan: ContainerPlan) -> dict[str, Any]:
        config = container_config(plan)
        mount = config["HostConfig"]["Mounts"][0]
        if mount["Type"] == "bind":
            mount["Source"] += "-elsewhere"
        return config

    monkeypatch.setattr("hermes_rl.backends.docker_session.container_config", misnamed)
    volume = ""
    try:
        async with _sandbox(settings) as sandbox:
            assert (await sandbox.exec("echo hi", timeout_s=60)).text == "hi\n"
            volume = _inspect(sandbox, "{{(index .Mounts 0).Name}}")
    finally:
        if volume:
            remove_volume(volume)
    assert volume.startswith("hermes-runtime-")


@pytest.mark.parametrize("gone", ["everything", "the loader"])
async def test_a_cache_that_is_emptied_in_a_run_is_filled_again(tmp_path: Path, gone: str) -> None:
    settings = run_settings(tmp_path / "cache")
    async with create_backend(settings) as backend:
        await (await backend.create(box())).close()
        if gone == "everything":
            shutil.rmtree(tmp_path / "cache")
        else:
            (loader,) = (tmp_path / "cache").glob("runtime-*/lib/ld-linux*")
            loader.unlink()
        sandbox = await backend.create(box())
        assert (await sandbox.exec("echo hi", timeout_s=60)).text == "hi\n"
    assert containers_of(settings.run_id) == {}


async def test_a_volume_that_is_removed_in_a_run_is_filled_again(cache_dir: Path) -> None:
    by_volume = run_settings(cache_dir, runtime="volume")
    async with create_backend(by_volume) as backend:
        before = await backend.create(box())
        volume = _inspect(before, "{{(index .Mounts 0).Name}}")
        await before.close()
        remove_volume(volume)
        after = await backend.create(box())
        assert (await after.exec("echo hi", timeout_s=60)).text == "hi\n"
        assert _inspect(after, "{{(index .Mounts 0).Name}}") == volume
    remove_volume(volume)


# Through the engine


async def test_a_trusted_command_has_the_engines_exit_code(settings: BackendSettings) -> None:
    async with _sandbox(settings) as sandbox:
        result = await sandbox.exec(
            "cat; echo out; echo err >&2; pwd; id -un; exit 6",
            timeout_s=60,
            trusted=True,
            stdin=b"in\n",
            cwd="/usr",
            user="nobody",
        )
        assert result.exit_code == 6
        assert result.stdout == b"in\nout\n/usr\nnobody\n"
        assert result.stderr == b"err\n"
        words = ["printf", "%s|", "a b", "c"]
        argv = await sandbox.exec(words, timeout_s=math.inf, trusted=True)
        assert argv.stdout == b"a b|c|"


async def test_a_trusted_commands_output_is_capped_and_counted(settings: BackendSettings) -> None:
    async with _sandbox(settings) as sandbox:
        result = await sandbox.exec(
            "echo first; head -c 3000000 /dev/zero; echo last; echo err >&2",
            timeout_s=60,
            trusted=True,
            max_output_bytes=1000,
            merge_stderr=True,
        )
    assert (len(result.stdout), result.stdout_head) == (1000, 400)
    assert result.stdout.startswith(b"first\n")
    assert b"last\n" in result.stdout[-20:]
    assert result.stdout_total == 3_000_000 + len("first\nlast\nerr\n")
    assert (result.stderr, result.stderr_total) == (b"", 0)


async def test_a_trusted_command_dies_at_its_deadline_and_when_cancelled(
    settings: BackendSettings,
) -> None:
    async with _sandbox(settings) as sandbox:
        result = await sandbox.exec("echo part; sleep 1111", timeout_s=3, trusted=True)
        assert (result.exit_code, result.timed_out, result.stdout) == (124, True, b"part\n")
        with anyio.move_on_after(0.5):
            await sandbox.exec("sleep 1111", timeout_s=60, trusted=True)
        script = "for i in $(seq 600); do pgrep -fx 'sleep 1111' || exit 0; sleep 0.1; done; exit 1"
        assert (await sandbox.exec(script, timeout_s=60)).exit_code == 0


async def test_trusted_commands_take_turns_to_start_and_need_none_to_run(
    settings: BackendSettings,
) -> None:
    async with create_backend(settings) as backend:
        sandbox = await backend.create(box())
        sandbox._engine.starts = StartTurns(1)
        results: dict[str, ExecResult] = {}

        async def run(name: str, command: str) -> None:
            results[name] = await sandbox.exec(command, timeout_s=60, trusted=True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, "long", "until [ -e go ]; do sleep 0.1; done")
            while (await sandbox.exec("pgrep -f 'unti[l] .* -e go'", timeout_s=60)).exit_code:
                await anyio.sleep(0.1)
            await run("short", "echo meanwhile")
            assert "long" not in results
            async with sandbox._engine.starts.turn():
                tasks.start_soon(run, "late", "true")
                await anyio.sleep(1)
                assert "late" not in results
            await sandbox.exec("touch go", timeout_s=60)
    assert results["short"].text == "meanwhile\n"
    assert results["late"].exit_code == results["long"].exit_code == 0
    assert results["late"].duration_s < 60


async def test_a_trusted_commands_time_begins_with_its_turn(settings: BackendSettings) -> None:
    async with _sandbox(settings) as sandbox:
        sandbox._engine.starts = StartTurns(1)
        results: list[ExecResult] = []

        async def run() -> None:
            results.append(await sandbox.exec("sleep 0.2", timeout_s=60, trusted=True))

        begun_s = time.monotonic()
        async with anyio.create_task_group() as tasks, sandbox._engine.starts.turn():
            tasks.start_soon(run)
            await anyio.sleep(2)
        assert 0.2 <= results[0].duration_s <= time.monotonic() - begun_s - 2


async def test_a_trusted_command_that_ends_with_its_sandbox_has_no_result(
    settings: BackendSettings,
) -> None:
    async with create_backend(settings) as backend:
        sandbox = await backend.create(box())
        killed = await sandbox.exec("kill -9 $$", timeout_s=60, trusted=True)
        assert (killed.exit_code, killed.signal) == (137, 9)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_raises_gone, sandbox, "sleep 600")
            while (await sandbox.exec("pgrep -x sleep", timeout_s=60)).exit_code:
                await anyio.sleep(0.1)
            await anyio.to_thread.run_sync(docker, "rm", "-f", sandbox.id)


async def _raises_gone(sandbox: Sandbox, command: str) -> None:
    with pytest.raises(SandboxGone) as gone:
        await sandbox.exec(command, timeout_s=600, trusted=True)
    assert gone.value.cause == "removed"


async def test_a_trusted_command_works_on_any_image(settings: BackendSettings) -> None:
    async with create_backend(settings) as backend:
        bare = await backend.create(box(image=BARE_IMAGE))
        assert (await bare.exec("echo $0", timeout_s=60, trusted=True)).exit_code == 0
        empty = await backend.create(box(image=EMPTY_IMAGE))
        no_shell = await empty.exec("echo", timeout_s=60, trusted=True)
        assert (no_shell.exit_code, "no shell" in no_shell.stderr_text) == (127, True)
        missing = await empty.exec(["/nosuch"], timeout_s=60, trusted=True)
        assert missing.exit_code == 127


async def test_trusted_reads_see_files_and_follow_no_links(settings: BackendSettings) -> None:
    async with _sandbox(settings) as sandbox:
        await sandbox.exec(
            "mkdir d; printf 0123456789 > d/f; ln -s d/f link; ln -s d dir; mkfifo pipe",
            timeout_s=60,
        )
        assert await sandbox.read("d/f", max_bytes=10, trusted=True) == b"0123456789"
        assert await sandbox.read("~/dir/f", max_bytes=3, offset=7, trusted=True) == b"789"
        with pytest.raises(SandboxFileTooLarge):
            await sandbox.read("/root/d/f", max_bytes=9, trusted=True)
        with pytest.raises(SandboxFileNotFound):
            await sandbox.read("nosuch", max_bytes=9, trusted=True)
        with pytest.raises(SandboxIsADirectory):
            await sandbox.read("d", max_bytes=9, trusted=True)
        with pytest.raises(FileError, match="is a link"):
            await sandbox.read("link", max_bytes=10, trusted=True)
        with pytest.raises(FileError, match="no regular file"):
            await sandbox.read("pipe", max_bytes=10, trusted=True)


async def test_changes_name_what_was_added_changed_and_deleted(settings: BackendSettings) -> None:
    async with _sandbox(settings) as sandbox:
        assert await sandbox.changes() == []
        command = "touch /new; rm /etc/issue; echo x >> /etc/passwd; A=1; cd /tmp"
        await sandbox.exec(command, timeout_s=60)
        kinds = {change.path: change.kind for change in await sandbox.changes()}
    assert kinds == {
        "/etc": "modified",
        "/etc/issue": "deleted",
        "/etc/passwd": "modified",
        "/new": "added",
    }


async def test_a_paused_sandbox_stands_still_and_goes_on(
    settings: BackendSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.backends.docker_sandbox.PAUSE_LIMIT_S", 60.0)
    async with _sandbox(settings) as sandbox:
        command = "(while sleep 0.02; do date +%N > t.new; mv t.new t; done) >/dev/null 2>&1 &"
        await sandbox.exec(command + " until [ -e t ]; do sleep 0.02; done", timeout_s=60)
        async with sandbox.pause():
            before = await sandbox.read("/root/t", max_bytes=99, trusted=True)
            await anyio.sleep(0.3)
            assert await sandbox.read("/root/t", max_bytes=99, trusted=True) == before
        goes_on = f"while [ $(cat t) = {before.decode().strip()} ]; do sleep 0.02; done"
        assert (await sandbox.exec(goes_on, timeout_s=60)).exit_code == 0


async def test_a_pause_is_bounded(
    settings: BackendSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hermes_rl.backends.docker_sandbox.PAUSE_LIMIT_S", 0.5)
    async with _sandbox(settings) as sandbox:
        with pytest.raises(SandboxError, match="paused longer than"):
            async with sandbox.pause():
                await anyio.sleep(60)
        assert (await sandbox.exec("echo on", timeout_s=60)).text == "on\n"


async def test_a_paused_sandbox_can_be_closed(settings: BackendSettings) -> None:
    async with create_backend(settings) as backend:
        sandbox = await backend.create(box())
        async with sandbox.pause():
            await sandbox.close()
        assert containers_of(settings.run_id) == {}


# Ends


async def test_closing_removes_it_and_may_be_repeated(settings: BackendSettings) -> None:
    async with create_backend(settings) as backend:
        sandbox = await backend.create(box())
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(sandbox.close)
        assert containers_of(settings.run_id) == {}
        await sandbox.close()
        with pytest.raises(SandboxGone) as caught:
            await sandbox.exec("true", timeout_s=60)
        assert caught.value.cause == "removed"


async def test_leaving_the_backend_removes_what_is_left(settings: BackendSettings) -> None:
    census = leak_census(container_label=f"{RUN_LABEL}={settings.run_id}")
    async with census, create_backend(settings) as backend:
        for _ in range(3):
            await backend.create(box())
        assert len(containers_of(settings.run_id)) == 3


async def test_an_exception_or_a_cancel_removes_everything_too(settings: BackendSettings) -> None:
    with anyio.move_on_after(60) as scope:
        async with create_backend(settings) as backend:
            await backend.create(box())
            scope.cancel()
            await anyio.sleep_forever()
    assert containers_of(settings.run_id) == {}


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3])
async def test_a_create_cancelled_at_any_moment_leaves_nothing(
    settings: BackendSettings, delay_s: float
) -> None:
    async with create_backend(settings) as backend:
        with anyio.move_on_after(delay_s):
            await backend.create(box())
            await anyio.sleep_forever()
        for sandbox in list(backend._connected()._sandboxes.values()):
            await sandbox.close()
        assert containers_of(settings.run_id) == {}


async def test_out_of_memory_in_a_command_is_that_commands_end(settings: BackendSettings) -> None:
    async with _sandbox(settings, memory_mb=96) as sandbox:
        result = await sandbox.exec(["python3", "-c", "x = b'1' * (300 << 20)"], timeout_s=30)
        assert (result.exit_code, result.signal) == (137, 9)
        assert (await sandbox.exec("echo alive", timeout_s=60)).text == "alive\n"


async def _ending(sandbox: Sandbox) -> SandboxGone:
    with pytest.raises(SandboxGone) as caught:
        await sandbox.exec("sleep 300", timeout_s=300)
    with pytest.raises(SandboxGone) as again:
        await sandbox.read("/etc/hostname", max_bytes=100)
    assert again.value.cause == caught.value.cause
    return caught.value


async def test_a_lease_that_ends_is_expired(settings: BackendSettings) -> None:
    async with _sandbox(settings, lease_s=5) as sandbox:
        gone = await _ending(sandbox)
        assert (gone.cause, gone.by_agent) == ("expired", False)
        assert await gone_within(settings.run_id, 60)


async def test_a_container_removed_by_someone_is_removed(settings: BackendSettings) -> None:
    async with _sandbox(settings) as sandbox, anyio.create_task_group() as tasks:

        async def remove() -> None:
            await anyio.sleep(0.3)
            await anyio.to_thread.run_sync(docker, "rm", "-f", sandbox.id)

        tasks.start_soon(remove)
        assert (await _ending(sandbox)).cause == "removed"


async def test_a_supervisor_killed_from_the_host_is_killed(settings: BackendSettings) -> None:
    async with _sandbox(settings) as sandbox, anyio.create_task_group() as tasks:
        pid = int(_inspect(sandbox, "{{.State.Pid}}"))

        async def kill() -> None:
            await anyio.sleep(0.3)
            os.kill(pid, signal.SIGKILL)

        tasks.start_soon(kill)
        gone = await _ending(sandbox)
        assert (gone.cause, gone.by_agent) == ("killed", False)


async def test_a_supervisor_out_of_memory_is_the_agents_doing(settings: BackendSettings) -> None:
    async with _sandbox(settings, memory_mb=48) as sandbox, anyio.create_task_group() as tasks:
        adjustment = anyio.Path(f"/proc/{_inspect(sandbox, '{{.State.Pid}}')}/oom_score_adj")
        await adjustment.write_text("1000")  # make it the kernel's first choice

        async def exhaust() -> None:
            fill = "dd if=/dev/zero of=/dev/shm/x bs=1M oflag=append conv=notrunc"
            with suppress(SandboxGone):
                while True:
                    await sandbox.exec(fill, timeout_s=30, session=None)

        tasks.start_soon(exhaust)
        gone = await _ending(sandbox)
        assert (gone.cause, gone.by_agent) == ("oom", True)


async def test_forged_frames_end_the_sandbox_as_the_agents_doing(
    settings: BackendSettings,
) -> None:
    forge = (
        "for f in /proc/1/fd/*; do [ -p $f ] && head -c 99 /dev/zero > $f & done 2>/dev/null;"
        "sleep 60"
    )
    async with _sandbox(settings) as sandbox:
        with pytest.raises(SandboxGone) as caught:
            await sandbox.exec(forge, timeout_s=60)
        assert caught.value.by_agent
        assert await gone_within(settings.run_id, 60)


# Engines that die, and their neighbours


@asynccontextmanager
async def _engine_process(
    settings: BackendSettings, *states: str, prefix: Sequence[str] = ()
) -> AsyncIterator[subprocess.Popen[str]]:
    engine = [sys.executable, str(ENGINE), settings.run_id, str(settings.cache_dir)]
    command = [*prefix, *engine, *states]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for _ in states:
            line = await anyio.to_thread.run_sync(process.stdout.readline)
            assert line.strip() in states
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def test_a_killed_engines_running_sandboxes_are_gone_in_seconds(
    settings: BackendSettings,
) -> None:
    states = ("running", "running", "transferring", "starting")
    async with _engine_process(settings, *states) as process:
        assert len(containers_of(settings.run_id)) >= 3
        process.kill()
        process.wait()
        left_created = {"created"}
        deadline_s = time.monotonic() + 60
        while set(containers_of(settings.run_id).values()) - left_created:
            assert time.monotonic() < deadline_s, containers_of(settings.run_id)
            await anyio.sleep(0.1)
    async with create_backend(run_settings(settings.cache_dir)):
        assert containers_of(settings.run_id) == {}


async def test_the_next_sweep_removes_what_a_killed_engine_had_created_or_paused(
    settings: BackendSettings,
) -> None:
    async with create_backend(run_settings(settings.cache_dir)) as neighbour:
        own = await neighbour.create(box())
        async with _engine_process(settings, "created", "paused") as process:
            assert await neighbour.sweep() == []
            assert sorted(containers_of(settings.run_id).values()) == ["created", "paused"]
            process.kill()
            process.wait()
            doomed = containers_of(settings.run_id)
            assert set(await neighbour.sweep()) == set(doomed)
        assert containers_of(settings.run_id) == {}
        assert (await own.exec("echo mine", timeout_s=60)).text == "mine\n"


async def test_two_engines_in_two_pid_namespaces_do_not_reap_each_other(
    settings: BackendSettings,
) -> None:
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    possible = subprocess.run([*unshare, "true"], check=False, capture_output=True)  # noqa: ASYNC221
    require(possible.returncode == 0, "needs the right to make a pid namespace")
    async with create_backend(run_settings(settings.cache_dir)) as backend:
        own = await backend.create(box())
        # Entering the other engine sweeps too: ours must outlive that.
        async with _engine_process(settings, "running", prefix=unshare):
            assert await backend.sweep() == []
            verdicts = {record.run: record.verdict for record in await backend.records()}
            assert verdicts[settings.run_id] == "keep"
            assert list(containers_of(settings.run_id).values()) == ["running"]
        assert (await own.exec("echo alive", timeout_s=60)).text == "alive\n"
    assert await gone_within(settings.run_id, 60)


async def test_past_its_deadline_even_a_foreign_container_is_swept(
    settings: BackendSettings,
) -> None:
    async with create_backend(settings) as backend:
        session = backend._connected()
        image = await session._images.image_for(box())
        plan = session._plan(box(lease_s=-1000), image)
        labels = {**plan.labels, OWNER_LABEL: "machine:boot:1:2:3"}
        config = {**container_config(plan), "Labels": labels}
        container = await session._engine.create(f"hermes-late-{settings.run_id}", config)
        assert list(await backend.sweep()) == [container[:12]]


async def test_doctor_finds_the_daemon_and_says_what_is_left(
    settings: BackendSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = {check.name: check for check in await create_backend(settings).doctor()}
    assert checks["docker daemon"].ok
    assert checks["docker limits"].ok
    assert "sandboxes" in " ".join(checks)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    checks = {check.name: check for check in await create_backend(settings).doctor()}
    assert not checks["docker daemon"].ok
    assert "DOCKER_HOST" in checks["docker daemon"].fix


async def test_without_a_daemon_entering_says_what_to_do(
    settings: BackendSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent.sock")
    async with leak_census():
        with pytest.raises(BackendUnavailable, match="Start it, or point DOCKER_HOST at one"):
            async with create_backend(settings):
                pass


async def test_the_limits_are_two_per_core_of_the_daemon(settings: BackendSettings) -> None:
    async with create_backend(settings) as backend:
        cores = int(docker("info", "--format", "{{.NCPU}}"))
        assert (backend.limits.starting, backend.limits.removing) == (2 * cores, 2 * cores)


# Uploads through the engine


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory that is large enough for the engine."""
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "sub/blob").write_bytes(os.urandom(3 << 20))
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o750)
    (root / "link").symlink_to("sub/blob")
    return root


LISTING = "cd {0} && find . -printf '%P %y %m %u %l\\n' | sort && sha256sum sub/blob"


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Directories the engine was told to unpack in; the real call is made."""
    seen: list[str] = []
    original = DockerEngine.put_archive

    async def put_archive(self: DockerEngine, container: str, path: str, tar: Any) -> None:
        seen.append(path)
        await original(self, container, path, tar)

    monkeypatch.setattr(DockerEngine, "put_archive", put_archive)
    return seen


async def test_a_large_upload_is_the_same_by_the_engine_and_by_the_outpost(
    settings: BackendSettings, tree: Path, puts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _sandbox(settings) as sandbox:
        await sandbox.upload(tree, "/by/engine")
        await sandbox.upload(tree / "sub/blob", "~/file/name")
        assert puts == ["/by/engine", "/root/file"]
        monkeypatch.setattr("hermes_rl.backends.docker_sandbox.LARGE_BYTES", 1 << 40)
        await sandbox.upload(tree, "/by/outpost")
        await sandbox.upload(tree / "sub/blob", "/root/file/other")
        assert len(puts) == 2
        engine = await sandbox.exec(LISTING.format("/by/engine"), timeout_s=60)
        outpost = await sandbox.exec(LISTING.format("/by/outpost"), timeout_s=60)
        assert engine.exit_code == 0
        assert engine.text == outpost.text
        same = await sandbox.exec("cd ~/file && cmp name other && stat -c %a *", timeout_s=60)
        assert same.text.split()[0] == same.text.split()[1]


async def test_a_large_upload_below_a_tmpfs_is_seen(
    settings: BackendSettings, tree: Path, puts: list[str]
) -> None:
    async with _sandbox(settings) as sandbox:
        await sandbox.exec("ln -s /dev/shm /root/shm", timeout_s=60)
        await sandbox.upload(tree, "/root/shm/tree")
        await sandbox.upload(tree / "sub/blob", "/dev/shm/blob")
        listed = await sandbox.exec("cd /dev/shm && cmp blob tree/sub/blob", timeout_s=60)
    assert (listed.exit_code, puts) == (0, [])


async def test_a_large_upload_replaces_what_stands_in_its_way(
    settings: BackendSettings, tree: Path, puts: list[str]
) -> None:
    plant = "mkdir -p /t/run && ln -s /etc /t/sub && echo x > /t/link && echo y > /t/kept"
    async with _sandbox(settings) as sandbox:
        await sandbox.exec(plant, timeout_s=60)
        await sandbox.upload(tree, "/t")
        result = await sandbox.exec(
            "test ! -e /etc/blob && cat /t/kept && stat -c %F /t/run /t/sub /t/link", timeout_s=60
        )
    assert puts == ["/t"]
    assert result.text == "y\nregular file\ndirectory\nsymbolic link\n"


async def test_a_large_upload_onto_the_wrong_kind_is_the_same_error_as_a_small_one(
    settings: BackendSettings, tree: Path
) -> None:
    async with _sandbox(settings) as sandbox:
        await sandbox.exec("mkdir d; echo > f", timeout_s=60)
        with pytest.raises(SandboxIsADirectory):
            await sandbox.upload(tree / "sub/blob", "/root/d")
        with pytest.raises(FileError):
            await sandbox.upload(tree, "/root/f")


async def test_a_large_upload_as_another_user_has_that_users_rights(
    settings: BackendSettings, tree: Path, puts: list[str]
) -> None:
    async with _sandbox(settings, user="nobody", workdir="/tmp") as sandbox:
        await sandbox.upload(tree, "/tmp/mine")
        owner = await sandbox.exec("stat -c %U mine/sub/blob", timeout_s=60)
        with pytest.raises(FileError):
            await sandbox.upload(tree, "/root/theirs")
    assert (owner.text, puts) == ("nobody\n", [])


async def test_what_cannot_be_read_here_is_named(
    settings: BackendSettings, tree: Path, puts: list[str]
) -> None:
    os.mkfifo(tree / "zpipe")
    async with _sandbox(settings) as sandbox:
        with pytest.raises(FileError, match="zpipe"):
            await sandbox.upload(tree, "/root/tree")
    assert puts == ["/root/tree"]
