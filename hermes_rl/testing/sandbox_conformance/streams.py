"""Streams: commands in progress, their output under flow control, input, tails, terminals."""

from __future__ import annotations

import hashlib

import anyio
import pytest

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import Capability, Process, Sandbox
from hermes_rl.testing.sandbox_conformance.base import (
    ConformanceBase,
    eventually,
    needs,
    sh,
    unique,
)

__all__ = ["StreamConformance"]

FLOOD = "import sys\nwhile True: sys.stdout.buffer.write(b'y' * 65536); sys.stdout.flush()"
ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.flush()"
SLEEP = "import time; print('up', flush=True); time.sleep(60)"
PATIENCE_S = 60.0


async def collect(process: Process, fd: int = 1) -> bytes:
    """Return all output on one stream."""
    with anyio.fail_after(PATIENCE_S):
        return b"".join([chunk.data async for chunk in process if chunk.fd == fd])


class StreamConformance(ConformanceBase):
    """Needs only a Python in the sandbox, no shell."""

    async def test_chunks_arrive_while_the_command_runs(self, sandbox: Sandbox) -> None:
        """Output is there before the process ends."""
        async with sandbox.stream(self.script(SLEEP), session=None) as process:
            with anyio.fail_after(PATIENCE_S):
                chunk = await anext(aiter(process))
            assert (chunk.fd, chunk.data) == (1, b"up\n")
            assert process.result is None

    async def test_chunks_name_their_stream(self, sandbox: Sandbox) -> None:
        """Each piece says whether it is output or error."""
        code = "import sys; print('out', flush=True); print('err', file=sys.stderr)"
        async with sandbox.stream(self.script(code), session=None) as process:
            chunks = [(chunk.fd, chunk.data) async for chunk in process]
        assert sorted(chunks) == [(1, b"out\n"), (2, b"err\n")]

    async def test_merged_stream_is_one(self, sandbox: Sandbox) -> None:
        """Merged output comes on stream 1 in the order written."""
        code = "import os\nfor i in range(50): os.write(1 + i % 2, b'%d\\n' % i)"
        async with sandbox.stream(self.script(code), session=None, merge_stderr=True) as process:
            text = await collect(process)
        assert text == b"".join(b"%d\n" % number for number in range(50))

    async def test_write_and_write_eof(self, sandbox: Sandbox) -> None:
        """A conversation: each line written comes back, the end of input ends it."""
        async with sandbox.stream(self.script(ECHO), session=None) as process:
            chunks = aiter(process)
            for line in (b"one\n", b"two\n"):
                await process.write(line)
                with anyio.fail_after(PATIENCE_S):
                    assert (await anext(chunks)).data == line
            await process.write_eof()
            assert (await process.wait()).exit_code == 0

    async def test_stream_has_its_own_directory_and_variables(self, sandbox: Sandbox) -> None:
        """What a call says of directory and environment holds for it."""
        code = "import os; print(os.getcwd(), os.environ['MARK'])"
        async with sandbox.stream(
            self.script(code), session=None, cwd="/", env={"MARK": "of the call"}
        ) as process:
            assert await collect(process) == b"/ of the call\n"

    async def test_wait_needs_no_reader(self, sandbox: Sandbox) -> None:
        """The result comes although nobody reads, if the output fits into the window."""
        code = "print('x' * 20000); raise SystemExit(5)"
        async with sandbox.stream(self.script(code), session=None) as process:
            with anyio.fail_after(PATIENCE_S):
                result = await process.wait()
            assert (result.exit_code, result.stdout_total) == (5, 20_001)
            assert process.result == result
            assert len(await collect(process)) == 20_001

    async def test_unread_stream_blocks_the_command(self, sandbox: Sandbox) -> None:
        """A flood that nobody reads stands still, in bounded memory."""
        async with sandbox.stream(self.script(FLOOD), session=None) as process:
            await self.wait_until_still(process)
            assert process.total_bytes < 4_000_000

    async def wait_until_still(self, process: Process) -> None:
        """Wait until output has begun and then stopped for a while."""
        last = -1
        with anyio.fail_after(PATIENCE_S):
            while process.total_bytes == 0 or process.total_bytes != last:
                last = process.total_bytes
                await anyio.sleep(0.3)

    async def test_unread_stream_blocks_nothing_else(self, sandbox: Sandbox) -> None:
        """Commands, files and other streams go on beside one that nobody reads."""
        async with sandbox.stream(self.script(FLOOD), session=None) as process:
            await self.wait_until_still(process)
            assert (await sh(sandbox, self.script("print('fine')"))).stdout == b"fine\n"
            name = unique("beside")
            await sandbox.write(name, bytes(500_000))
            assert len(await sandbox.read(name, max_bytes=500_000)) == 500_000
            async with sandbox.stream(self.script("print('too')"), session=None) as other:
                assert await collect(other) == b"too\n"

    async def test_slow_reader_gets_every_byte(self, sandbox: Sandbox) -> None:
        """Flow control loses nothing, whatever the pace."""
        code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 12000)"
        digest = hashlib.sha256()
        async with sandbox.stream(self.script(code), session=None) as process:
            count = 0
            async for chunk in process:
                digest.update(chunk.data)
                count += 1
                if count % 8 == 0:
                    await anyio.sleep(0.01)
        assert digest.digest() == hashlib.sha256(bytes(range(256)) * 12000).digest()

    async def test_iteration_ends_with_the_process(self, sandbox: Sandbox) -> None:
        """A background child that holds the output does not hold the iteration."""
        code = (
            "import os, time\nprint('parent', flush=True)\n"
            "if os.fork() == 0: time.sleep(60); os._exit(0)\n"
        )
        async with sandbox.stream(self.script(code), session=None) as process:
            assert await collect(process) == b"parent\n"
            result = await process.wait()
            assert result.background

    async def test_leaving_the_context_kills(self, sandbox: Sandbox) -> None:
        """What still runs when the context is left is dead afterwards."""
        async with sandbox.stream(self.script(SLEEP), session=None) as process:
            await anext(aiter(process))
            pid = process.pid
        assert not await self.exists(sandbox, pid)

    async def exists(self, sandbox: Sandbox, pid: int) -> bool:
        """Tell whether a process lives in the sandbox."""
        code = "import os, sys; print(os.path.exists('/proc/' + sys.argv[1] + '/exe'))"
        return (await sh(sandbox, self.script(code, str(pid)))).stdout == b"True\n"

    async def test_leaving_by_an_error_kills(self, sandbox: Sandbox) -> None:
        """An exception in the body does not keep the command alive."""
        pids: list[int] = []

        async def fail() -> None:
            async with sandbox.stream(self.script(SLEEP), session=None) as process:
                pids.append(process.pid)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert not await self.exists(sandbox, pids[0])

    async def test_kill_returns_the_result(self, sandbox: Sandbox) -> None:
        """Killing tells how it ended: by SIGKILL."""
        async with sandbox.stream(self.script(SLEEP), session=None) as process:
            result = await process.kill()
            assert (result.exit_code, result.signal, result.timed_out) == (137, 9, False)
            assert process.result == result
            assert await process.kill() == result

    async def test_grace_lets_the_command_end_itself(self, sandbox: Sandbox) -> None:
        """With a grace SIGTERM comes first; a handler has time to finish."""
        code = (
            "import os, signal, sys, time\n"
            "signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b'bye\\n'), sys.exit(3)))\n"
            "os.write(1, b'up\\n')\ntime.sleep(60)"
        )
        async with sandbox.stream(self.script(code), session=None) as process:
            chunks = aiter(process)
            await anext(chunks)
            start = anyio.current_time()
            result = await process.kill(grace_s=20)
            assert anyio.current_time() - start < 15
            assert result.exit_code == 3
            assert (await anext(chunks)).data == b"bye\n"

    async def test_grace_is_not_forever(self, sandbox: Sandbox) -> None:
        """What ignores SIGTERM is killed when the grace is over."""
        code = (
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "print('up', flush=True)\ntime.sleep(60)"
        )
        async with sandbox.stream(self.script(code), session=None) as process:
            await anext(aiter(process))
            assert (await process.kill(grace_s=0.3)).signal == 9

    async def test_stream_has_a_deadline(self, sandbox: Sandbox) -> None:
        """The deadline of a stream ends it like that of a command."""
        async with sandbox.stream(self.script(SLEEP), session=None, timeout_s=0.8) as process:
            result = await process.wait()
            assert (result.timed_out, result.exit_code) == (True, 124)

    async def test_stream_of_a_missing_program_has_a_result(self, sandbox: Sandbox) -> None:
        """What cannot be started has the result that a shell would give it."""
        async with sandbox.stream(["no-such-program"], session=None) as process:
            result = await process.wait()
            assert result.exit_code == 127
            assert b"no-such-program" in result.stderr
            assert [chunk async for chunk in process] == []

    async def test_tail_rolls_and_never_blocks(self, sandbox: Sandbox) -> None:
        """With ``tail_bytes`` the last bytes are kept, and the command runs to its end."""
        code = "print(''.join(f'{i:07d}\\n' for i in range(300000)), end='')"
        async with sandbox.stream(self.script(code), session=None, tail_bytes=16) as process:
            result = await process.wait()
            assert result.exit_code == 0
            assert (process.tail, process.total_bytes) == (b"0299998\n0299999\n", 2_400_000)

    async def test_tail_is_up_to_date_while_running(self, sandbox: Sandbox) -> None:
        """What a server printed can be seen soon, without waiting for its end."""
        async with sandbox.stream(self.script(SLEEP), session=None, tail_bytes=1000) as process:

            async def is_up() -> bool:
                return process.tail == b"up\n"

            await eventually(is_up)
            assert process.result is None

    async def test_tail_cannot_be_iterated(self, sandbox: Sandbox) -> None:
        """A rolling tail has no chunks; asking for them is a programming error."""
        async with sandbox.stream(self.script("pass"), session=None, tail_bytes=10) as process:
            with pytest.raises(TypeError):
                aiter(process)

    async def test_unread_input_makes_write_wait(self, sandbox: Sandbox) -> None:
        """Input that the process does not read is bounded: ``write`` waits."""
        async with sandbox.stream(self.script(SLEEP), session=None) as process:
            with anyio.move_on_after(0.5) as scope:
                await process.write(bytes(5_000_000))
            assert scope.cancelled_caught

    async def test_large_input_arrives(self, sandbox: Sandbox) -> None:
        """Megabytes of input written in one go arrive whole."""
        code = "import sys; print(len(sys.stdin.buffer.read()))"
        async with sandbox.stream(self.script(code), session=None) as process:
            await process.write(bytes(3_000_000))
            await process.write_eof()
            assert await collect(process) == b"3000000\n"

    async def test_write_after_the_end_is_an_error(self, sandbox: Sandbox) -> None:
        """Nobody can read any more; that is told."""
        async with sandbox.stream(self.script("pass"), session=None) as process:
            await process.wait()
            with pytest.raises(SandboxError):
                await process.write(b"too late")

    async def test_context_may_be_left_from_another_task(self, sandbox: Sandbox) -> None:
        """The context holds no cancel scope of the task that entered it."""
        context = sandbox.stream(self.script(SLEEP), session=None)
        pids: list[int] = []

        async def enter() -> None:
            pids.append((await context.__aenter__()).pid)

        async with anyio.create_task_group() as group:
            group.start_soon(enter)
        await context.__aexit__(None, None, None)
        assert not await self.exists(sandbox, pids[0])

    async def test_many_streams_at_once(self, sandbox: Sandbox) -> None:
        """Twenty conversations do not mix."""

        async def talk(number: int) -> None:
            async with sandbox.stream(self.script(ECHO), session=None) as process:
                await process.write(b"%d\n" % number * 1000)
                await process.write_eof()
                assert await collect(process) == b"%d\n" % number * 1000

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(talk, number)

    @needs(Capability.PTY)
    async def test_terminal(self, sandbox: Sandbox) -> None:
        """With ``pty`` the command has a terminal that echoes and has a size."""
        code = (
            "import os, sys; print(os.isatty(0), os.isatty(1), os.isatty(2),"
            " os.get_terminal_size().columns > 0); print('got', input())"
        )
        async with sandbox.stream(self.script(code), session=None, pty=True) as process:
            await process.write(b"typed\n")
            text = await collect(process)
            assert (await process.wait()).exit_code == 0
        assert b"True True True True\r\n" in text
        assert b"typed\r\n" in text
        assert b"got typed\r\n" in text

    @needs(Capability.PTY)
    async def test_terminal_is_the_controlling_one(self, sandbox: Sandbox) -> None:
        """Ctrl-C typed into the terminal interrupts the command."""
        code = (
            "import time\ntry:\n    print('up', flush=True)\n    time.sleep(60)\n"
            "except KeyboardInterrupt: print('caught')"
        )
        async with sandbox.stream(self.script(code), session=None, pty=True) as process:
            chunks = aiter(process)
            await anext(chunks)
            await process.write(b"\x03")
            rest = b"".join([chunk.data async for chunk in chunks])
        assert b"caught" in rest
