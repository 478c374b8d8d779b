"""Sessions: what one command leaves to the next."""

from __future__ import annotations

import anyio

from hermes_rl.sandbox import Capability, ExecResult, Sandbox
from hermes_rl.testing.sandbox_conformance.base import ConformanceBase, needs, sh, unique

__all__ = ["SessionConformance"]


class _Session:
    """A named session of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.name = unique("session")

    async def __call__(self, cmd: str | list[str], *, timeout_s: float = 30.0) -> ExecResult:
        return await self.sandbox.exec(cmd, timeout_s=timeout_s, session=self.name)

    async def text(self, cmd: str) -> str:
        return (await self(cmd)).text

    async def folder(self) -> str:
        """Return the working directory, ready for a slash behind it."""
        return ((await self(":")).cwd or "").rstrip("/")


class SessionConformance(ConformanceBase):
    """State between commands; needs a shell in the image."""

    async def test_directory_persists(self, sandbox: Sandbox) -> None:
        """``cd`` holds for the next command and is reported."""
        run = _Session(sandbox)
        name = unique("there")
        there = f"{await run.folder()}/{name}"
        assert (await run(f"mkdir {name} && cd {name}")).cwd == there
        assert await run.text("pwd") == f"{there}\n"

    async def test_environment_persists(self, sandbox: Sandbox) -> None:
        """Exported variables reach the next command's programs."""
        run = _Session(sandbox)
        await run("export A='1  2'; B=local; export C=")
        assert await run.text('env | grep "^A="; echo "${C-unset}${B-unset}"') == "A=1  2\nunset\n"

    async def test_unset_persists(self, sandbox: Sandbox) -> None:
        """A variable that was unset does not come back."""
        run = _Session(sandbox)
        assert await run.text("echo ${PATH:+set}") == "set\n"
        await run("export A=1; unset A; unset OLDPWD; unset TMPDIR")
        assert await run.text('echo "${A-unset} ${TMPDIR-unset}"') == "unset unset\n"

    async def test_awkward_values_persist(self, sandbox: Sandbox) -> None:
        """Quotes, newlines, dollars and non-ASCII survive."""
        run = _Session(sandbox)
        value = 'it\'s "q" $HOME `x`\n\nline\\ é\treturn 0\n#/tmp\n#end'
        await sandbox.exec(
            'export V="$GIVEN"', timeout_s=30, session=run.name, env={"GIVEN": value}
        )
        assert await run.text('printf %s "$V"') == value

    async def test_exit_keeps_the_state(self, sandbox: Sandbox) -> None:
        """``exit N`` ends the command, not the session."""
        run = _Session(sandbox)
        assert (await run("cd /tmp; export A=kept; exit 3")).exit_code == 3
        assert await run.text("echo $A; pwd") == "kept\n/tmp\n"

    async def test_errexit_keeps_the_state(self, sandbox: Sandbox) -> None:
        """A command that ends by ``set -e`` keeps what it did, and its options are its own."""
        run = _Session(sandbox)
        assert (await run("export A=kept; set -e; false; export A=no")).exit_code == 1
        assert await run.text("false; echo $A") == "kept\n"

    async def test_exec_leaves_the_previous_state(self, sandbox: Sandbox) -> None:
        """After ``exec`` nobody is left to save; what was saved before stands."""
        run = _Session(sandbox)
        await run("export A=old")
        assert await run.text("export A=new; exec echo replaced") == "replaced\n"
        assert await run.text("echo $A") == "old\n"

    async def test_sigkill_leaves_the_previous_state(self, sandbox: Sandbox) -> None:
        """A killed shell saves nothing and tears nothing."""
        run = _Session(sandbox)
        await run("export A=old; cd /tmp")
        assert (await run("export A=new; cd /; kill -9 $$")).exit_code == 137
        assert await run.text("echo $A; pwd") == "old\n/tmp\n"

    async def test_timeout_leaves_the_previous_state(self, sandbox: Sandbox) -> None:
        """A command that met its deadline leaves the session as it was."""
        run = _Session(sandbox)
        await run("export A=old")
        assert (await run("export A=new; sleep 60", timeout_s=0.5)).timed_out
        assert await run.text("echo $A") == "old\n"

    async def test_own_exit_trap_runs(self, sandbox: Sandbox) -> None:
        """A trap of the command's own runs, and the state is kept all the same."""
        run = _Session(sandbox)
        result = await run("trap 'echo bye' EXIT; export A=kept; false")
        assert (result.stdout, result.exit_code) == (b"bye\n", 1)
        assert await run.text("echo $A") == "kept\n"

    async def test_sessions_are_apart(self, sandbox: Sandbox) -> None:
        """Two names, two states."""
        one, two = _Session(sandbox), _Session(sandbox)
        await one("export A=1; cd /")
        await two("export A=2; cd /tmp")
        assert await one.text("echo $A; pwd") == "1\n/\n"
        assert await two.text("echo $A; pwd") == "2\n/tmp\n"

    async def test_no_session_has_no_state(self, sandbox: Sandbox) -> None:
        """``session=None`` neither reads nor writes any."""
        await sh(sandbox, "export A=1; cd /")
        assert (await sh(sandbox, 'echo "${A-unset}"')).text == "unset\n"
        assert (await sh(sandbox, "true")).cwd is None

    async def test_commands_of_a_session_run_in_order(self, sandbox: Sandbox) -> None:
        """Started together, they run one after the other and lose no update."""
        run = _Session(sandbox)
        await run("export N=0")
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(run, "export N=$((N+1))")
        assert await run.text("echo $N") == "10\n"

    async def test_many_sessions_at_once(self, sandbox: Sandbox) -> None:
        """Sessions running at the same time do not mix."""
        sessions = [_Session(sandbox) for _ in range(10)]

        async def count(run: _Session, number: int) -> None:
            for step in range(3):
                await run(f"export A=${{A}}{number}{step}")

        async with anyio.create_task_group() as group:
            for number, run in enumerate(sessions):
                group.start_soon(count, run, number)
        for number, run in enumerate(sessions):
            assert await run.text("echo $A") == f"{number}0{number}1{number}2\n"

    async def test_calls_env_is_not_saved(self, sandbox: Sandbox) -> None:
        """Environment of one call wins in it and leaves the session's own value alone."""
        run = _Session(sandbox)
        await run("export A=own")
        result = await sandbox.exec(
            'echo "$A $B"', timeout_s=30, session=run.name, env={"A": "given", "B": "x"}
        )
        assert result.text == "given x\n"
        assert await run.text('echo "$A ${B-unset}"') == "own unset\n"

    async def test_calls_cwd_is_not_saved(self, sandbox: Sandbox) -> None:
        """The directory of one call leaves the session's own alone."""
        run = _Session(sandbox)
        await run("cd /tmp")
        result = await sandbox.exec("pwd", timeout_s=30, session=run.name, cwd="/")
        assert (result.text, result.cwd) == ("/\n", "/tmp")
        assert await run.text("pwd") == "/tmp\n"

    async def test_directory_with_an_awkward_name(self, sandbox: Sandbox) -> None:
        """Spaces, quotes and newlines in a directory's name are no trouble, and never executed."""
        run = _Session(sandbox)
        awkward = unique("a 'b' $(touch ~/executed)\ntouch ~/executed\nx")
        name = f"{await run.folder()}/{awkward}"
        await sandbox.exec(
            'mkdir -p "$D" && cd "$D"', timeout_s=30, session=run.name, env={"D": name}
        )
        assert await run.text("pwd") == name + "\n"
        assert (await sh(sandbox, "ls ~/executed")).exit_code != 0

    async def test_deleted_directory_is_left(self, sandbox: Sandbox) -> None:
        """When the session's directory is gone, commands go on in the nearest one and say so."""
        run = _Session(sandbox)
        await run("mkdir -p /tmp/gone/deep && cd /tmp/gone/deep && rm -r /tmp/gone")
        result = await run("pwd")
        assert (result.text, result.exit_code) == ("/tmp\n", 0)
        assert b"/tmp/gone/deep" in result.stderr

    async def test_linked_directory_keeps_its_name(self, sandbox: Sandbox) -> None:
        """``cd`` through a link stays at the link's name, as in one shell."""
        run = _Session(sandbox)
        here = await run.folder()
        link = f"{here}/{unique('link')}"
        await run(f"ln -s / {link}; cd {link}")
        assert await run.text("pwd; cd ..; pwd") == f"{link}\n{here or '/'}\n"

    async def test_shell_options_do_not_break_the_state(self, sandbox: Sandbox) -> None:
        """Whatever options a command sets for itself, its state is kept."""
        run = _Session(sandbox)
        for number, option in enumerate(("-u", "-C", "-f", "-a", "-x", "-v", "-eu")):
            await run(f"set {option}; export A={number}")
            assert await run.text("echo $A") == f"{number}\n"

    async def test_readonly_variable_is_no_trouble(self, sandbox: Sandbox) -> None:
        """A read-only variable persists or not, but nothing complains."""
        run = _Session(sandbox)
        await run("export R=1; readonly R")
        for _ in range(2):
            result = await run("echo $R")
            assert (result.stdout, result.stderr) == (b"1\n", b"")

    async def test_argv_sees_the_session(self, sandbox: Sandbox) -> None:
        """A program without a shell gets the session's environment and directory."""
        run = _Session(sandbox)
        await run("export A='x  y'; cd /tmp")
        assert (await run(["env"])).text.splitlines().count("A=x  y") == 1
        assert (await run(["pwd"])).text == "/tmp\n"

    async def test_full_disk_of_output_does_not_tear_the_state(self, sandbox: Sandbox) -> None:
        """A limit on file sizes in the command makes saving fail, not the session."""
        run = _Session(sandbox)
        await run("export A=old")
        await run("export A=new; ulimit -f 0; trap '' XFSZ")
        assert await run.text("echo $A") in ("old\n", "new\n")

    async def test_stream_starts_from_the_session(self, sandbox: Sandbox) -> None:
        """A streamed command sees the state and does not change it."""
        run = _Session(sandbox)
        await run("export A=old; cd /tmp")
        async with sandbox.stream("echo $A; pwd; export A=new; cd /", session=run.name) as process:
            text = b"".join([chunk.data async for chunk in process])
            await process.wait()
        assert text == b"old\n/tmp\n"
        assert await run.text("echo $A; pwd") == "old\n/tmp\n"

    async def test_stream_does_not_hold_the_session(self, sandbox: Sandbox) -> None:
        """While a streamed command runs, others of its session do too."""
        run = _Session(sandbox)
        async with sandbox.stream("sleep 60", session=run.name):
            assert await run.text("echo meanwhile") == "meanwhile\n"

    @needs(Capability.BASH)
    async def test_functions_and_aliases_persist(self, sandbox: Sandbox) -> None:
        """With bash, functions (exported ones too) and aliases reach the next command."""
        run = _Session(sandbox)
        await run("greet() { echo \"hello $1\"; }; alias twice='echo two; echo'; ex() { echo ex; }")
        await run("export -f ex; later() { twice never; }")
        assert await run.text("greet you; twice three") == "hello you\ntwo\nthree\n"
        assert await run.text("bash -c ex") == "ex\n"

    @needs(Capability.BASH)
    async def test_functions_with_extended_patterns_persist(self, sandbox: Sandbox) -> None:
        """A function that needs extglob to be read again is read again."""
        run = _Session(sandbox)
        await run("shopt -s extglob")
        await run('f() { case "$1" in !(a|b)) echo other;; *) echo ab;; esac; }; export A=kept')
        assert await run.text("f c; f a; echo $A") == "other\nab\nkept\n"

    @needs(Capability.BASH)
    async def test_redefined_builtins_do_not_break_the_state(self, sandbox: Sandbox) -> None:
        """Functions named like the builtins that save the state are just functions."""
        run = _Session(sandbox)
        await run("export A=1; export() { echo fake; }; printf() { :; }; declare() { :; }")
        assert await run.text("export; unset -f export printf declare") == "fake\n"
        assert await run.text("echo $A; export B=2; echo $B") == "1\n2\n"
