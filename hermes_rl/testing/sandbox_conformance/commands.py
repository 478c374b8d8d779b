"""How commands run: results, output, input, environment, big texts, background jobs."""

from __future__ import annotations

import hashlib

import anyio

from hermes_rl.sandbox import Capability, ExecResult, Sandbox
from hermes_rl.testing.sandbox_conformance.base import (
    ConformanceBase,
    alive,
    eventually,
    needs,
    sh,
    unique,
)

__all__ = ["ArgvConformance", "CommandConformance"]

MANY_BYTES = 3_000_000
MEET = """
import os, sys, time
name, number = sys.argv[1:]
open(name + "-" + number, "w").close()
for _ in range(500):
    if sum(each.startswith(name + "-") for each in os.listdir()) == 20:
        sys.exit(0)
    time.sleep(0.1)
sys.exit(1)
"""
"""Waits until twenty of these run."""


class ArgvConformance(ConformanceBase):
    """Commands given as arguments, without a shell; an image with no shell has these too."""

    async def test_argv_exit_code_is_a_result(self, sandbox: Sandbox) -> None:
        """A non-zero exit of a program is returned, not raised."""
        result = await sh(sandbox, self.script("raise SystemExit(7)"))
        assert (result.exit_code, result.signal, result.timed_out) == (7, None, False)

    async def test_argv_is_not_interpreted(self, sandbox: Sandbox) -> None:
        """Arguments reach the program byte for byte; nothing is expanded."""
        arguments = ["$HOME", "*", "a b", "", "'\"\\", "é", "\n"]
        code = "import sys; sys.stdout.buffer.write(ascii(sys.argv[1:]).encode())"
        result = await sh(sandbox, self.script(code, *arguments))
        assert result.text == ascii(arguments)

    async def test_argv_of_a_missing_program_is_127(self, sandbox: Sandbox) -> None:
        """A program that does not exist gives the shell's exit code and a message."""
        result = await sh(sandbox, ["no-such-program", "x"])
        assert result.exit_code == 127
        assert b"no-such-program" in result.stderr

    async def test_argv_of_a_file_that_is_no_program_is_126(self, sandbox: Sandbox) -> None:
        """A file that cannot be executed gives the shell's exit code."""
        name = unique("plain")
        await sandbox.write(name, b"data", mode=0o644)
        assert (await sh(sandbox, [f"./{name}"])).exit_code == 126

    async def test_argv_too_long_for_the_kernel_is_126(self, sandbox: Sandbox) -> None:
        """One argument above the kernel's limit is a result, not a broken sandbox."""
        result = await sh(sandbox, self.script("pass", "x" * 300_000))
        assert result.exit_code == 126
        assert b"too long" in result.stderr

    async def test_empty_argv_is_a_result(self, sandbox: Sandbox) -> None:
        """No program at all is an error result."""
        assert (await sh(sandbox, [])).exit_code in (126, 127)

    async def test_argv_stdin_is_empty_by_default(self, sandbox: Sandbox) -> None:
        """A program that reads gets the end of the file at once."""
        result = await sh(sandbox, self.script("import sys; print(len(sys.stdin.read()))"))
        assert result.stdout == b"0\n"

    async def test_argv_stdin_of_any_size_arrives(self, sandbox: Sandbox) -> None:
        """Standard input larger than every buffer on the way arrives whole."""
        data = bytes(range(256)) * (MANY_BYTES // 256)
        code = "import sys,hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
        result = await sh(sandbox, self.script(code), stdin=data)
        assert result.text.strip() == hashlib.sha256(data).hexdigest()

    async def test_unread_stdin_does_not_block(self, sandbox: Sandbox) -> None:
        """A program that never reads its input ends as usual."""
        result = await sh(sandbox, self.script("print('done')"), stdin=bytes(MANY_BYTES))
        assert (result.exit_code, result.stdout) == (0, b"done\n")

    async def test_output_of_every_byte_value_is_exact(self, sandbox: Sandbox) -> None:
        """Output is bytes; nothing is decoded, translated or trimmed."""
        code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 300)"
        result = await sh(sandbox, self.script(code))
        assert result.stdout == bytes(range(256)) * 300

    async def test_output_is_capped_as_head_and_tail(self, sandbox: Sandbox) -> None:
        """Of too much output the beginning and the end are kept, and the true total counted."""
        code = "print(''.join(f'{i:07d}\\n' for i in range(100000)), end='')"
        result = await sh(sandbox, self.script(code), max_output_bytes=1000)
        assert result.stdout_total == 800_000
        assert (len(result.stdout), result.stdout_head) == (1000, 400)
        assert result.stdout[:16] == b"0000000\n0000001\n"
        assert result.stdout[-8:] == b"0099999\n"

    async def test_output_of_exactly_the_cap_is_whole(self, sandbox: Sandbox) -> None:
        """The cap itself is not too much."""
        result = await sh(sandbox, self.script("print('y' * 999)"), max_output_bytes=1000)
        assert (result.stdout, result.stdout_total) == (b"y" * 999 + b"\n", 1000)

    async def test_large_output_within_the_cap_arrives(self, sandbox: Sandbox) -> None:
        """Kept output larger than one message arrives whole, each stream under its own cap."""
        code = "import sys; sys.stdout.write('o' * 2000000); sys.stderr.write('e' * 1500000)"
        result = await sh(sandbox, self.script(code), max_output_bytes=MANY_BYTES)
        assert result.stdout == b"o" * 2_000_000
        assert result.stderr == b"e" * 1_500_000

    async def test_argv_env_is_of_this_call(self, sandbox: Sandbox) -> None:
        """Extra environment reaches the program."""
        code = "import os; print(os.environ['GREETING'])"
        result = await sh(sandbox, self.script(code), env={"GREETING": "hi = there"})
        assert result.stdout == b"hi = there\n"

    async def test_commands_have_no_foreign_descriptors(self, sandbox: Sandbox) -> None:
        """A program inherits its three standard streams and nothing of the supervisor's."""
        code = "import os; print([int(f) for f in os.listdir('/proc/self/fd') if int(f) > 3])"
        assert (await sh(sandbox, self.script(code))).stdout == b"[]\n"

    async def test_commands_lead_their_own_session(self, sandbox: Sandbox) -> None:
        """Each command is a session leader, so signals to its group reach nobody else."""
        code = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())"
        assert (await sh(sandbox, self.script(code))).stdout == b"True\n"

    async def test_commands_start_with_default_signals(self, sandbox: Sandbox) -> None:
        """No signal is ignored or blocked on behalf of the supervisor."""
        code = (
            "import re; s = open('/proc/self/status').read();"
            "print(*[int(m, 16) & 0x7fffffff for m in re.findall(r'Sig(?:Blk|Ign):\\s*(\\w+)', s)])"
        )
        result = await sh(sandbox, self.script(code))
        # Python itself ignores SIGPIPE and SIGXFSZ.
        assert result.text.split() == ["0", str(0x01001000)]

    async def test_our_interpreter_does_not_show(self, sandbox: Sandbox) -> None:
        """No variable of the supervisor's interpreter leaks into commands."""
        code = (
            "import os; print([n for n in os.environ if n.startswith(('PYTHON', 'LD_'))"
            " and '.hermes' in os.environ[n]])"
        )
        assert (await sh(sandbox, self.script(code))).stdout == b"[]\n"

    async def test_commands_run_at_the_same_time(self, sandbox: Sandbox) -> None:
        """Stateless commands do not wait for each other."""
        name = unique("together")
        results: list[ExecResult] = []

        async def run(number: int) -> None:
            results.append(await sh(sandbox, self.script(MEET, name, str(number)), timeout_s=60))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(run, number)
        assert [each.exit_code for each in results] == [0] * 20

    async def test_argv_timeout_is_a_result(self, sandbox: Sandbox) -> None:
        """The deadline ends the program; what it had printed is there."""
        code = "import time; print('first', flush=True); time.sleep(60)"
        result = await sh(sandbox, self.script(code), timeout_s=2.0)
        assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, b"first\n")
        assert 2.0 <= result.duration_s < 30.0


class CommandConformance(ConformanceBase):
    """Commands given as text for a shell."""

    async def test_exit_code_is_a_result(self, sandbox: Sandbox) -> None:
        """A non-zero exit is returned, not raised."""
        assert (await sh(sandbox, "exit 3")).exit_code == 3

    async def test_output_is_exact(self, sandbox: Sandbox) -> None:
        """Standard output and error arrive apart and unchanged."""
        result = await sh(sandbox, "printf out; printf err >&2")
        assert (result.stdout, result.stderr) == (b"out", b"err")
        assert (result.stdout_total, result.stderr_total) == (3, 3)

    async def test_merged_output_is_in_the_order_written(self, sandbox: Sandbox) -> None:
        """With merged streams there is one, in order."""
        result = await sh(sandbox, "echo 1; echo 2 >&2; echo 3; echo 4 >&2", merge_stderr=True)
        assert (result.stdout, result.stderr) == (b"1\n2\n3\n4\n", b"")

    async def test_death_by_signal_is_told(self, sandbox: Sandbox) -> None:
        """A killed shell has exit code 128+N and the signal's number."""
        result = await sh(sandbox, "kill -9 $$")
        assert (result.exit_code, result.signal, result.timed_out) == (137, 9, False)

    async def test_unknown_command_is_127(self, sandbox: Sandbox) -> None:
        """The shell's own exit codes come through."""
        result = await sh(sandbox, "no-such-command")
        assert result.exit_code == 127
        assert b"no-such-command" in result.stderr

    async def test_syntax_error_is_a_result(self, sandbox: Sandbox) -> None:
        """Text that is no shell program gives exit code 2 and the shell's message."""
        result = await sh(sandbox, "if then ((")
        assert result.exit_code == 2
        assert result.stderr

    async def test_next_command_is_unaffected_by_a_broken_one(self, sandbox: Sandbox) -> None:
        """Whatever a command does to its own shell, the next one starts fresh."""
        for text in ("exec false", "set -e; false", "exit 9", "kill -9 $$", "exec 0<&- 1>&- 2>&-"):
            await sh(sandbox, text)
            assert (await sh(sandbox, "echo fine")).stdout == b"fine\n"

    async def test_closed_streams_are_no_trouble(self, sandbox: Sandbox) -> None:
        """A command that closes its output and goes on ends with its own exit code."""
        assert (await sh(sandbox, "exec 1>&- 2>&- 0<&-; exit 5")).exit_code == 5

    async def test_stdin_is_passed(self, sandbox: Sandbox) -> None:
        """Given bytes are standard input, followed by its end."""
        assert (await sh(sandbox, "cat", stdin=b"a\0b\n")).stdout == b"a\0b\n"

    async def test_env_is_of_this_call_only(self, sandbox: Sandbox) -> None:
        """Extra environment does not outlive the call."""
        assert (await sh(sandbox, 'echo "$X"', env={"X": "a 'b' \"c\""})).text == "a 'b' \"c\"\n"
        assert (await sh(sandbox, 'echo "${X-unset}"')).text == "unset\n"

    async def test_cwd_is_of_this_call_only(self, sandbox: Sandbox) -> None:
        """The given directory is used once."""
        home = (await sh(sandbox, "pwd")).text
        assert (await sh(sandbox, "pwd", cwd="/")).text == "/\n"
        assert (await sh(sandbox, "pwd")).text == home

    async def test_missing_cwd_is_a_result_that_names_it(self, sandbox: Sandbox) -> None:
        """A directory that does not exist is the command's failure, with its name in it."""
        result = await sh(sandbox, "pwd", cwd="/no/such/dir")
        assert result.exit_code == 126
        assert b"/no/such/dir" in result.stderr

    async def test_timeout_keeps_partial_output(self, sandbox: Sandbox) -> None:
        """A command that meets its deadline returns what it had printed."""
        result = await sh(sandbox, "echo first; sleep 60", timeout_s=0.5)
        assert (result.timed_out, result.exit_code) == (True, 124)
        assert result.stdout == b"first\n"

    async def test_command_above_the_kernels_argument_limit(self, sandbox: Sandbox) -> None:
        """A text of 200 KB runs like a short one."""
        text = f"x='{'a' * 200_000}'; echo ${{#x}}; exit 4"
        result = await sh(sandbox, text)
        assert (result.stdout, result.exit_code) == (b"200000\n", 4)

    async def test_command_of_megabytes(self, sandbox: Sandbox) -> None:
        """A here-document of 2 MB arrives exactly."""
        body = "0123456789abcde\n" * 131_072
        result = await sh(sandbox, f"cat <<'END' | wc -c\n{body}END\n")
        assert int(result.stdout) == len(body)

    async def test_nul_in_a_command_is_a_result(self, sandbox: Sandbox) -> None:
        """A text no shell can be given is refused as a result."""
        result = await sh(sandbox, "echo a\0b")
        assert result.exit_code == 126
        assert b"NUL" in result.stderr

    async def test_text_is_unicode(self, sandbox: Sandbox) -> None:
        """Any text arrives as UTF-8, even lone surrogates arrive as some bytes."""
        assert (await sh(sandbox, "printf %s 'é 漢 🙂'")).text == "é 漢 🙂"
        assert (await sh(sandbox, "printf %s '\ud800' | wc -c")).exit_code == 0

    async def test_multi_line_text_with_here_document(self, sandbox: Sandbox) -> None:
        """Lines, comments and here-documents mean what they mean in a script."""
        text = "# a comment\ncat <<E\none\ntwo\nE\nfor i in 1 2; do\n  echo $i\ndone # end"
        assert (await sh(sandbox, text)).text == "one\ntwo\n1\n2\n"

    async def test_messages_count_lines_from_one(self, sandbox: Sandbox) -> None:
        """The shell's messages do not count lines of any wrapper."""
        result = await sandbox.exec(
            "true\nif then", timeout_s=30, session=unique(), merge_stderr=True
        )
        assert result.exit_code == 2
        assert "line 2" in result.text or ": 2:" in result.text

    async def test_xtrace_shows_the_command_alone(self, sandbox: Sandbox) -> None:
        """``set -x`` traces the command, nothing of ours."""
        result = await sandbox.exec("set -x; echo hi", timeout_s=30, session=unique())
        assert result.stderr.strip(b"+ \n") == b"echo hi"

    async def test_background_job_does_not_hold_the_result(self, sandbox: Sandbox) -> None:
        """A job that keeps the output open lets the command return, and is told of."""
        marker = unique("31")
        result = await sh(sandbox, f"sh -c 'sleep 60; : {marker}' & echo started")
        assert result.stdout == b"started\n"
        assert result.background
        assert result.duration_s < 20
        assert await alive(sandbox, marker) == 1
        await sh(sandbox, f"pkill -f {marker} || true")

    async def test_redirected_background_job_is_not_counted(self, sandbox: Sandbox) -> None:
        """A job with its output elsewhere is none of this command's any more."""
        result = await sh(sandbox, "sleep 2 >/dev/null 2>&1 & sleep 0.2; echo started")
        assert (result.stdout, result.background) == (b"started\n", False)

    async def test_background_job_gets_no_sigpipe(self, sandbox: Sandbox) -> None:
        """Output after the command's end is drained: the job writes on and finishes."""
        name = unique("done")
        job = f"(sleep 0.2; head -c 300000 /dev/zero; echo fine >{name})"
        await sh(sandbox, f"{job} & echo started")

        async def finished() -> bool:
            return (await sh(sandbox, f"cat {name}")).stdout == b"fine\n"

        await eventually(finished)

    async def test_output_just_before_the_end_is_not_lost(self, sandbox: Sandbox) -> None:
        """What is still in the pipe when the process ends belongs to the result."""
        for _ in range(20):
            result = await sh(sandbox, "head -c 60000 /dev/zero; exit 0")
            assert result.stdout_total == 60_000

    async def test_output_flood_is_bounded_and_counted(self, sandbox: Sandbox) -> None:
        """50 MB of output cost kept bytes only, and the total is right."""
        result = await sh(sandbox, "head -c 50000000 /dev/zero", max_output_bytes=1000)
        assert (result.stdout_total, len(result.stdout)) == (50_000_000, 1000)

    async def test_zombies_are_reaped(self, sandbox: Sandbox) -> None:
        """Orphans that end are collected by the supervisor."""
        started = await sh(sandbox, "for i in 1 2 3; do (setsid sh -c : & echo $!); done")
        pids = started.stdout.split()
        assert len(pids) == 3

        async def none_left() -> bool:
            names = " ".join(f"/proc/{int(pid)}/stat" for pid in pids)
            states = await sh(sandbox, f"cat {names} 2>/dev/null | grep -c ') Z '")
            return int(states.stdout) == 0

        await eventually(none_left)

    @needs(Capability.BASH)
    async def test_text_is_for_bash(self, sandbox: Sandbox) -> None:
        """Where there is bash, commands are bash."""
        result = await sh(sandbox, "a=(1 2 3); [[ ${#a[@]} == 3 ]] && echo {x..z}")
        assert result.text == "x y z\n"
