"""Life and death: creating, refusing, health, leases, closing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from hermes_rl.errors import (
    BackendUnavailable,
    CreateError,
    FileError,
    SandboxError,
    SandboxGone,
    Unsupported,
)
from hermes_rl.sandbox import (
    Backend,
    Capability,
    ExecResult,
    HealthCheck,
    Sandbox,
    SandboxSpec,
)
from hermes_rl.testing.sandbox_conformance.base import (
    ConformanceBase,
    eventually,
    needs,
    sh,
    unique,
)

__all__ = ["CapabilityConformance", "LifeConformance"]

SERVE = "import os, time; open('started', 'w').write(os.environ.get('MARK', '')); time.sleep(600)"
IMPLYING: dict[str, Any] = {
    "image": "hermes-conformance-none:latest",
    "dockerfile_dir": Path("no-such-context"),
    "cpus": 1.0,
    "memory_mb": 256,
    "pids": 64,
    "gpus": 1,
    "user": "nobody",
    "network": "none",
}
"""Fields of a spec, each with a value that implies a capability."""
FORK_MANY = """
import os, signal
children = []
try:
    while len(children) < 200:
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except OSError:
    pass
print(len(children))
for child in children:
    os.kill(child, signal.SIGKILL)
"""


class LifeConformance(ConformanceBase):
    """Needs only a Python in the sandbox, no shell."""

    async def test_ping_is_a_round_trip(self, sandbox: Sandbox) -> None:
        """A healthy sandbox answers in no time."""
        assert 0 <= await sandbox.ping() < 5

    async def test_ids_are_unique(self, sandbox: Sandbox, fresh: Sandbox) -> None:
        """Two sandboxes, two ids."""
        assert sandbox.id != fresh.id

    async def test_sandboxes_are_apart(self, sandbox: Sandbox, fresh: Sandbox) -> None:
        """Relative files of one are not the other's."""
        name = unique()
        await sandbox.write(name, b"x")
        assert name not in [entry.name for entry in await fresh.list(".")]

    async def test_missing_capability_is_refused_by_name(self, backend: Backend) -> None:
        """A spec that needs what the backend lacks is refused before anything is made."""
        for capability in set(Capability) - backend.capabilities - {Capability.BASH}:
            with pytest.raises(Unsupported) as caught:
                await backend.create(replace(self.spec, needs=frozenset({capability})))
            assert caught.value.capability == capability.value

    @pytest.mark.parametrize(("field", "value"), IMPLYING.items())
    async def test_a_field_that_cannot_be_honoured_is_refused(
        self, backend: Backend, field: str, value: Any
    ) -> None:
        """A limit, a user or a network that the backend cannot provide is never left out."""
        spec = replace(SandboxSpec(), **{field: value})
        (capability,) = spec.required_capabilities()
        if capability in backend.capabilities:
            pytest.skip(f"declared: {capability}")
        with pytest.raises(Unsupported) as caught:
            await backend.create(replace(self.spec, **{field: value}))
        assert caught.value.capability == capability.value

    @needs(Capability.IMAGES)
    async def test_an_image_that_does_not_exist_is_no_sandbox(self, backend: Backend) -> None:
        """A sandbox of another image is never given out in its place."""
        image = "localhost:1/hermes-conformance-none:1"
        with pytest.raises((CreateError, BackendUnavailable)):
            await backend.create(replace(self.spec, image=image, dockerfile_dir=None))

    async def test_spec_directory_is_where_commands_run(self, backend: Backend) -> None:
        """Commands and relative paths start in the spec's directory."""
        box = await backend.create(replace(self.spec, workdir="/tmp"))
        try:
            assert (await sh(box, self.script("import os; print(os.getcwd())"))).stdout == b"/tmp\n"
        finally:
            await box.close()

    @needs(Capability.ISOLATION)
    async def test_files_of_the_host_are_out_of_reach(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        """What lies beside the engine is not there."""
        secret = tmp_path / unique("secret")
        secret.write_text("of the host")
        with pytest.raises(FileError):
            await sandbox.read(str(secret), max_bytes=100)

    async def test_spec_environment_reaches_commands(self, backend: Backend) -> None:
        """Variables of the spec are in every command's environment."""
        box = await backend.create(replace(self.spec, env={"MARK": "a b=c"}))
        try:
            code = "import os; print(os.environ['MARK'])"
            assert (await sh(box, self.script(code))).stdout == b"a b=c\n"
        finally:
            await box.close()

    async def test_startup_command_runs(self, backend: Backend) -> None:
        """The startup command is started in the background, with the spec's environment."""
        spec = replace(self.spec, startup=self.script(SERVE), env={"MARK": "here"})
        box = await backend.create(spec)
        try:

            async def started() -> bool:
                names = [entry.name for entry in await box.list(".")]
                return "started" in names and await box.read("started", max_bytes=10) == b"here"

            await eventually(started)
        finally:
            await box.close()

    async def test_startup_command_that_is_missing(self, backend: Backend) -> None:
        """A startup command that does not exist fails the creation, by name."""
        with pytest.raises(CreateError, match="no-such-server"):
            await backend.create(replace(self.spec, startup=["no-such-server"]))

    async def test_close_is_idempotent(self, backend: Backend) -> None:
        """Closing again, also at the same time, is no error."""
        box = await backend.create(self.spec)
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(box.close)
        await box.close()

    async def test_closed_sandbox_says_so(self, backend: Backend) -> None:
        """Every method raises SandboxGone with the cause ``removed``."""
        box = await backend.create(self.spec)
        await box.close()
        for call in (
            lambda: sh(box, self.script("pass")),
            lambda: box.read("x", max_bytes=1),
            lambda: box.write("x", b""),
            lambda: box.list("."),
            box.ping,
            box.kill_all,
        ):
            with pytest.raises(SandboxGone) as caught:
                await call()
            assert caught.value.cause == "removed"
        with pytest.raises(SandboxGone):
            async with box.stream(self.script("pass")):
                pass

    async def test_calls_in_flight_end_with_the_sandbox(self, backend: Backend) -> None:
        """Closing wakes everyone who waits, with SandboxGone."""
        box = await backend.create(self.spec)
        errors: list[SandboxError] = []

        async def run() -> None:
            try:
                await sh(box, self.script("import time; time.sleep(60)"))
            except SandboxError as error:
                errors.append(error)

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(run)
                await anyio.sleep(0.3)
                await box.close()
        assert [type(error) for error in errors] == [SandboxGone] * 3
        assert len({id(error) for error in errors}) == 3

    async def test_close_is_not_cancellable(self, backend: Backend) -> None:
        """A cancelled closer still closes."""
        box = await backend.create(self.spec)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await box.close()
        with pytest.raises(SandboxGone):
            await box.ping()

    async def test_close_with_a_busy_sandbox_is_quick(self, backend: Backend) -> None:
        """Running commands and floods do not delay the end."""
        box = await backend.create(self.spec)
        flood = "while True: print('y' * 10000)"
        async with box.stream(self.script(flood), session=None):
            start = anyio.current_time()
            await box.close()
            assert anyio.current_time() - start < 10

    async def test_lease_ends_the_sandbox(self, backend: Backend) -> None:
        """At its deadline a sandbox is gone, with the cause ``expired``."""
        box = await backend.create(replace(self.spec, lease_s=3.0))
        try:
            with anyio.fail_after(30), pytest.raises(SandboxGone) as caught:
                await sh(box, self.script("import time; time.sleep(60)"), timeout_s=60)
            assert caught.value.cause == "expired"
            assert not caught.value.by_agent
        finally:
            await box.close()

    @pytest.mark.parametrize("after_ms", [0, 1, 5, 20, 60])
    async def test_cancelled_create_leaves_nothing(self, backend: Backend, after_ms: int) -> None:
        """A creation cancelled at any moment does not break the next one."""
        with anyio.move_on_after(after_ms / 1000):
            box = await backend.create(self.spec)
            await box.close()
        box = await backend.create(self.spec)
        assert (await sh(box, self.script("print(1)"))).stdout == b"1\n"
        await box.close()

    async def test_many_sandboxes_at_once(self, backend: Backend) -> None:
        """Several are created, used and closed side by side."""

        async def live() -> None:
            box = await backend.create(self.spec)
            try:
                assert (await sh(box, self.script("print(1)"))).stdout == b"1\n"
            finally:
                await box.close()

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(live)

    async def test_lost_deadline_does_not_leak_into_the_next_call(self, sandbox: Sandbox) -> None:
        """A caller's own timeout around a call leaves the channel as it was."""
        results: list[ExecResult] = []
        for number in range(10):
            with anyio.move_on_after(0.02):
                await sh(sandbox, self.script("import time; time.sleep(1)"))
            results.append(await sh(sandbox, self.script(f"print({number})")))
        assert [int(result.stdout) for result in results] == list(range(10))


class CapabilityConformance(ConformanceBase):
    """What a backend may or may not be able to do; needs a shell."""

    async def test_health_check_is_waited_for(self, backend: Backend) -> None:
        """A sandbox is handed out when its health check passes."""
        check = HealthCheck(command="test -e ready", interval_s=0.1, retries=100)
        box = await backend.create(
            replace(self.spec, startup="sleep 0.5; touch ready", healthcheck=check)
        )
        try:
            assert (await sh(box, "ls ready")).exit_code == 0
        finally:
            await box.close()

    async def test_failed_health_check_is_a_create_error(self, backend: Backend) -> None:
        """What never becomes healthy is refused with the check's output."""
        check = HealthCheck(command="echo sick; false", interval_s=0.05, retries=2)
        with pytest.raises(CreateError, match="sick"):
            await backend.create(replace(self.spec, healthcheck=check))

    async def test_unsupported_calls_name_the_capability(self, sandbox: Sandbox) -> None:
        """Using what was not declared raises Unsupported."""
        declared = sandbox.capabilities
        if Capability.PAUSE not in declared:
            with pytest.raises(Unsupported, match="pause"):
                async with sandbox.pause():
                    pass
        if Capability.CHANGES not in declared:
            with pytest.raises(Unsupported, match="changes"):
                await sandbox.changes()
        if Capability.USERS not in declared:
            with pytest.raises(Unsupported, match="users"):
                await sh(sandbox, "id", user="nobody")
        if Capability.ENGINE_ACCESS not in declared:
            with pytest.raises(Unsupported, match="engine_access"):
                await sh(sandbox, "id", trusted=True)

    @needs(Capability.USERS)
    async def test_commands_run_as_another_user(self, sandbox: Sandbox) -> None:
        """The user, its groups and its home are those of the image's user database."""
        result = await sh(sandbox, "id -un; id -gn; echo $HOME", user="nobody")
        assert result.text.splitlines()[:2] == ["nobody", "nogroup"]
        assert (await sh(sandbox, "id -u; id -g", user="1234")).text == "1234\n0\n"
        assert (await sh(sandbox, "id -u")).text == "0\n"

    @needs(Capability.USERS)
    async def test_other_users_may_not_do_what_root_may(self, sandbox: Sandbox) -> None:
        """A dropped user has really lost its rights, and cannot be killed off its own list."""
        assert (await sh(sandbox, "cat /etc/shadow", user="nobody")).exit_code != 0
        assert (await sh(sandbox, "sleep 60", user="nobody", timeout_s=0.5)).timed_out

    @needs(Capability.USERS)
    async def test_sessions_of_users_are_apart(self, sandbox: Sandbox) -> None:
        """The same session name of two users is two sessions."""
        name = unique("session")
        await sandbox.exec("export A=root", timeout_s=30, session=name)
        await sandbox.exec("export A=nobody; cd /tmp", timeout_s=30, session=name, user="nobody")
        assert (await sandbox.exec("echo $A", timeout_s=30, session=name)).text == "root\n"
        result = await sandbox.exec("echo $A; pwd", timeout_s=30, session=name, user="nobody")
        assert result.text == "nobody\n/tmp\n"

    @needs(Capability.USERS)
    async def test_unknown_user_is_an_error(self, sandbox: Sandbox) -> None:
        """A user that does not exist is a mistake of the caller's."""
        with pytest.raises(SandboxError, match="no-such-user"):
            await sh(sandbox, "id", user="no-such-user")

    @needs(Capability.PAUSE)
    async def test_pause_freezes(self, fresh: Sandbox) -> None:
        """While paused nothing runs; afterwards everything goes on."""
        text = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"
        async with fresh.stream(text, session=None, tail_bytes=10) as process:
            await eventually(lambda: _has_output(process.total_bytes))
            async with fresh.pause():
                await anyio.sleep(0.3)
                before = process.total_bytes
                await anyio.sleep(0.5)
                assert process.total_bytes == before
            await eventually(lambda: _has_output(process.total_bytes - before))

    @needs(Capability.CHANGES)
    async def test_changes_are_listed(self, fresh: Sandbox) -> None:
        """What was added and changed since the image is there, with its kind."""
        await fresh.exec("echo x >/etc/added; echo y >>/etc/passwd", timeout_s=30)
        kinds = {change.path: change.kind for change in await fresh.changes()}
        assert kinds["/etc/added"] == "added"
        assert kinds["/etc/passwd"] == "modified"

    @needs(Capability.ENGINE_ACCESS)
    async def test_trusted_calls(self, sandbox: Sandbox) -> None:
        """Trusted commands and reads give what the ordinary ones give."""
        name = f"/tmp/{unique()}"
        await sandbox.write(name, b"\0data")
        assert await sandbox.read(name, max_bytes=100, trusted=True) == b"\0data"
        result = await sh(sandbox, "cat; echo err >&2; exit 3", stdin=b"in", trusted=True)
        assert (result.stdout, result.stderr, result.exit_code) == (b"in", b"err\n", 3)
        assert (await sh(sandbox, "sleep 60", timeout_s=1.0, trusted=True)).timed_out

    @needs(Capability.PIDS_LIMIT)
    async def test_fork_bomb_is_contained(self, backend: Backend) -> None:
        """Under its limit of processes a fork bomb ends at its deadline, the sandbox lives."""
        box = await backend.create(replace(self.spec, pids=64))
        try:
            # First whether there is a limit: where there is none the bomb is the whole machine's.
            forked = await sh(box, self.script(FORK_MANY))
            assert 0 < int(forked.stdout) < 64, "the declared limit of processes is not kept"
            result = await sh(box, "b() { b | b & }; b; sleep 60", timeout_s=2.0)
            assert result.exit_code != 0

            async def works() -> bool:
                return (await sh(box, "echo on")).text == "on\n"

            await eventually(works, timeout_s=20)
        finally:
            await box.close()

    @needs(Capability.MEMORY_LIMIT)
    async def test_memory_limit_holds(self, backend: Backend) -> None:
        """Memory beyond the limit kills the command or the sandbox, as the agent's own doing."""
        box = await backend.create(replace(self.spec, memory_mb=64))
        gone: list[SandboxGone] = []
        results: list[ExecResult] = []
        try:
            results.append(await sh(box, self.script("b = b'x' * (1 << 30); print(len(b))")))
        except SandboxGone as error:
            gone.append(error)
        finally:
            await box.close()
        assert [(error.cause, error.by_agent) for error in gone] in ([], [("oom", True)])
        assert [result for result in results if result.exit_code == 0 or result.stdout] == []

    @needs(Capability.NETWORK_NONE)
    async def test_no_network_is_none(self, backend: Backend) -> None:
        """Without a network there is the loopback device only."""
        box = await backend.create(replace(self.spec, network="none"))
        try:
            devices = await sh(box, "tail -n +3 /proc/net/dev | cut -d: -f1")
            assert devices.text.split() == ["lo"]
        finally:
            await box.close()


async def _has_output(count: int) -> bool:
    return count > 0
