"""Deadlines, cancellation and kills: nothing of a command survives it, and nothing else dies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from hermes_rl.sandbox import Capability, ExecResult, Sandbox
from hermes_rl.testing.sandbox_conformance.base import (
    QUICK_S,
    ConformanceBase,
    alive,
    eventually,
    needs,
    sh,
    unique,
)

__all__ = ["CancellationConformance", "KillConformance"]

ESCAPE = """
import os, sys, time
marker = sys.argv[1]
def sleeper():
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(60) #" + marker], {})
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        sleeper()
    os._exit(0)
time.sleep(60)
"""


class KillConformance(ConformanceBase):
    """Needs a shell, sleep and a Python in the sandbox."""

    async def test_timeout_kills_a_pipeline(self, sandbox: Sandbox) -> None:
        """Every member of a pipeline is dead when the result is there."""
        marker = unique("pipe")
        text = f"sh -c 'sleep 60; : {marker}' | sh -c 'cat; : {marker}' | cat"
        assert (await sh(sandbox, text, timeout_s=0.7)).timed_out
        assert await alive(sandbox, marker) == 0

    async def test_timeout_kills_what_ignores_signals(self, sandbox: Sandbox) -> None:
        """Ignoring TERM, INT and HUP does not help."""
        marker = unique("deaf")
        text = f"sh -c 'trap \"\" TERM INT HUP; while :; do sleep 1; done; : {marker}'"
        assert (await sh(sandbox, text, timeout_s=0.7)).timed_out
        assert await alive(sandbox, marker) == 0

    async def test_timeout_kills_what_left_its_session(self, sandbox: Sandbox) -> None:
        """A child in a session of its own belongs to the command all the same."""
        marker = unique("setsid")
        child = f"setsid sh -c 'sleep 60; : {marker}'"
        text = f"{child} & ({child} &); sleep 60"
        assert (await sh(sandbox, text, timeout_s=0.7)).timed_out
        assert await alive(sandbox, marker) == 0

    async def test_timeout_kills_what_hides_its_origin(self, sandbox: Sandbox) -> None:
        """Forked twice, in its own session, with an empty environment: still found."""
        marker = unique("hidden")
        assert (await sh(sandbox, self.script(ESCAPE, marker), timeout_s=1.0)).timed_out
        assert await alive(sandbox, marker) == 0

    async def test_timeout_kills_a_stopped_process(self, sandbox: Sandbox) -> None:
        """A process that is stopped can be killed too."""
        marker = unique("stopped")
        text = f"sh -c 'kill -STOP $$; : {marker}' & sleep 60"
        assert (await sh(sandbox, text, timeout_s=0.7)).timed_out
        assert await alive(sandbox, marker) == 0

    async def test_timeout_kills_many(self, sandbox: Sandbox) -> None:
        """A hundred children are no problem."""
        marker = unique("many")
        text = f"for i in $(seq 100); do sh -c 'sleep 60; : {marker}' & done; echo up; wait"
        result = await sh(sandbox, text, timeout_s=4.0)
        assert (result.timed_out, result.stdout) == (True, b"up\n")
        assert await alive(sandbox, marker) == 0

    async def test_timeout_kills_what_keeps_forking(self, sandbox: Sandbox) -> None:
        """A process that replaces itself all the time is caught."""
        marker = unique("fork")
        text = f"f() {{ sleep 0.01; f & : {marker}; }}; export M={marker}; f; sleep 60"
        assert (await sh(sandbox, text, timeout_s=0.7)).timed_out
        await anyio.sleep(0.2)
        assert await alive(sandbox, marker) == 0

    async def test_a_result_does_not_wait_for_what_was_killed(self, sandbox: Sandbox) -> None:
        """A command that will not end has its result soon after its deadline."""
        start = anyio.current_time()
        result = await sh(sandbox, "setsid sleep 60 & trap '' TERM; sleep 60", timeout_s=0.5)
        assert result.timed_out
        assert anyio.current_time() - start < 30

    async def test_kill_spares_earlier_background_jobs(self, sandbox: Sandbox) -> None:
        """A server started by an earlier command survives a later command's deadline."""
        server, victim = unique("server"), unique("victim")
        await sh(sandbox, f"sh -c 'sleep 60; : {server}' >/dev/null 2>&1 &")
        assert (await sh(sandbox, f"sleep 60; : {victim}", timeout_s=0.5)).timed_out
        assert await alive(sandbox, server) == 1
        await sh(sandbox, f"pkill -f {server} || true")

    async def test_kill_spares_other_commands(self, sandbox: Sandbox) -> None:
        """Of two commands running at once only the one that timed out dies."""
        results: list[ExecResult] = []

        async def run(text: str, timeout_s: float) -> None:
            results.append(await sh(sandbox, text, timeout_s=timeout_s))

        async with anyio.create_task_group() as group:
            group.start_soon(run, "sleep 60", 0.5)
            group.start_soon(run, "sleep 1.2; echo unharmed", 30)
        assert [each.timed_out for each in results] == [True, False]
        assert results[1].stdout == b"unharmed\n"

    async def test_next_command_works_after_a_kill(self, sandbox: Sandbox) -> None:
        """The session goes on after a deadline."""
        name = unique("session")
        assert (await sandbox.exec("sleep 60", timeout_s=0.3, session=name)).timed_out
        assert (await sandbox.exec("echo on", timeout_s=30, session=name)).text == "on\n"

    async def test_kill_all_kills_everything(self, fresh: Sandbox) -> None:
        """Commands, background jobs and escapees: all gone; running calls have results."""
        marker = unique("all")
        await fresh.exec(f"sh -c 'sleep 60; : {marker}' >/dev/null 2>&1 &", timeout_s=30)
        results: list[ExecResult] = []

        async def run() -> None:
            results.append(await sh(fresh, self.script(ESCAPE, marker)))

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await eventually(lambda: _has(fresh, marker, 3), timeout_s=20)
            await fresh.kill_all()
        assert results[0].signal == 9
        assert await alive(fresh, marker) == 0
        assert (await fresh.exec("echo on", timeout_s=30)).text == "on\n"

    @needs(Capability.ISOLATION)
    async def test_kill_minus_nine_minus_one(self, fresh: Sandbox) -> None:
        """A command that kills all it can leaves a sandbox that works."""
        result = await fresh.exec("kill -9 -1; sleep 0.2; echo survived", timeout_s=30)
        assert result.exit_code in (0, 137)
        assert (await fresh.exec("echo on", timeout_s=30)).text == "on\n"


class CancellationConformance(ConformanceBase):
    """A cancelled caller leaves a sandbox in which nothing of the call goes on."""

    async def cancelled(
        self, sandbox: Sandbox, call: Callable[[], Awaitable[object]], after_s: float
    ) -> None:
        """Cancel ``call`` after a while; then the sandbox must answer at once."""
        with anyio.move_on_after(after_s):
            await call()
        with anyio.fail_after(20):
            assert (await sh(sandbox, "echo on")).text == "on\n"

    @pytest.mark.parametrize("after_ms", [0, 1, 3, 10, 50, 300])
    async def test_cancelled_exec_is_dead(self, sandbox: Sandbox, after_ms: int) -> None:
        """At whatever moment a call is cancelled, its command does not go on."""
        marker = unique("cancelled")
        text = f"sh -c 'sleep 60; : {marker}'"
        await self.cancelled(sandbox, lambda: sh(sandbox, text), after_ms / 1000)
        assert await alive(sandbox, marker) == 0

    async def test_cancelled_waiter_never_runs(self, sandbox: Sandbox) -> None:
        """A call cancelled while it waits for its session's turn has no effect."""
        session, name = unique("session"), unique("file")
        busy = f"touch {name}.busy; until [ -e {name}.go ]; do sleep 0.05; done"
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: sandbox.exec(busy, timeout_s=QUICK_S, session=session))
            await eventually(lambda: _exists(sandbox, f"{name}.busy"), timeout_s=QUICK_S)
            with anyio.move_on_after(0.2):
                await sandbox.exec(f"touch {name}", timeout_s=30, session=session)
            await sandbox.write(f"{name}.go", b"")
        assert (await sandbox.exec(f"ls {name}", timeout_s=30, session=session)).exit_code != 0

    async def test_session_goes_on_after_cancellation(self, sandbox: Sandbox) -> None:
        """State from before the cancelled command stands, and the session is free."""
        session = unique("session")
        await sandbox.exec("export A=old", timeout_s=30, session=session)
        with anyio.move_on_after(0.3):
            await sandbox.exec("export A=new; sleep 60", timeout_s=90, session=session)
        result = await sandbox.exec("echo $A", timeout_s=30, session=session)
        assert result.text == "old\n"

    async def test_result_is_not_mixed_up_after_cancellation(self, sandbox: Sandbox) -> None:
        """A late answer to a cancelled call never becomes another call's."""
        for number in range(20):
            with anyio.move_on_after(0.002 * (number % 5)):
                await sh(sandbox, f"echo stale{number}")
            assert (await sh(sandbox, f"echo fresh{number}")).text == f"fresh{number}\n"

    @pytest.mark.parametrize("after_ms", [0, 1, 5, 30])
    async def test_cancelled_stream_entry(self, sandbox: Sandbox, after_ms: int) -> None:
        """Cancelling while a stream starts leaves no process."""
        marker = unique("entry")

        async def enter() -> None:
            async with sandbox.stream(f"sh -c 'sleep 60; : {marker}'", session=None):
                await anyio.sleep(60)

        await self.cancelled(sandbox, enter, after_ms / 1000)
        assert await alive(sandbox, marker) == 0

    async def test_cancelled_waits_of_a_stream(self, sandbox: Sandbox) -> None:
        """Cancelling a read, a write or a wait leaves the stream usable."""
        async with sandbox.stream("read x; echo got $x; sleep 60", session=None) as process:
            with anyio.move_on_after(0.1):
                await anext(aiter(process))
            with anyio.move_on_after(0.1):
                await process.wait()
            with anyio.move_on_after(0):
                await process.write(b"")
            await process.write(b"line\n")
            assert (await anext(aiter(process))).data == b"got line\n"
            assert (await process.kill()).signal == 9

    @pytest.mark.parametrize("after_ms", [0, 1, 5, 20])
    async def test_cancelled_file_operations(self, sandbox: Sandbox, after_ms: int) -> None:
        """A cancelled write leaves the old file or the new one, and no temporary beside it."""
        directory = unique("dir")
        path = f"{directory}/file"
        await sandbox.write(path, b"old")
        new = bytes(4_000_000)
        await self.cancelled(sandbox, lambda: sandbox.write(path, new), after_ms / 1000)
        assert await sandbox.read(path, max_bytes=len(new)) in (b"old", new)
        assert [entry.name for entry in await sandbox.list(directory)] == ["file"]
        await self.cancelled(
            sandbox, lambda: sandbox.read(path, max_bytes=len(new)), after_ms / 1000
        )

    @pytest.mark.parametrize("after_ms", [0, 5, 30])
    async def test_cancelled_transfers(
        self, sandbox: Sandbox, tmp_path: Path, after_ms: int
    ) -> None:
        """A cancelled upload or download leaves no process and no open file behind."""
        source, name = tmp_path / "source", unique("upload")
        await anyio.Path(source).write_bytes(bytes(20_000_000))
        await self.cancelled(sandbox, lambda: sandbox.upload(source, name), after_ms / 1000)
        await sandbox.upload(source, name)
        target = tmp_path / "target"
        await self.cancelled(sandbox, lambda: sandbox.download(name, target), after_ms / 1000)
        await sandbox.download(name, target)
        assert (await anyio.Path(target).stat()).st_size == 20_000_000


async def _exists(sandbox: Sandbox, path: str) -> bool:
    return (await sh(sandbox, f"test -e {path}")).exit_code == 0


async def _has(sandbox: Sandbox, marker: str, count: int) -> bool:
    return await alive(sandbox, marker) >= count
