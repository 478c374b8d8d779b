"""What earlier tool layers got wrong, one named test per fault, on real sandboxes."""

import asyncio
import os
import resource
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import orjson
import pytest

from hermes_rl.sandbox import Backend, Capability, Sandbox, SandboxSpec
from hermes_rl.testing.fake_sandbox import FakeSandbox
from hermes_rl.tools import NATIVE_TOOLS, ToolDispatcher, ToolSettings
from hermes_rl.tools.host_guard import guard_command, refuse_command


def living(mark: str) -> list[str]:
    """Return the command lines of processes that hold ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if mark in line and "pytest" not in line:
                found.append(line)
    return found


@contextmanager
def many_open_files(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, count + 500)), hard))
    with tempfile.TemporaryFile() as file:
        copies = [os.dup(file.fileno()) for _ in range(count)]
        try:
            yield
        finally:
            for fd in copies:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_rollouts_never_share_a_sandbox(
    backend: Backend, call_with: Callable[..., object]
) -> None:
    sandboxes = [await backend.create(SandboxSpec()) for _ in range(2)]
    one, two = (call_with(ToolDispatcher(each, list(NATIVE_TOOLS))) for each in sandboxes)
    await one("terminal", command="export A=secret; cd /usr; echo x > ~/only-here")
    seen = (await two("terminal", command='echo "[$A]"; pwd; ls ~'))["output"]
    assert seen.splitlines()[0] == "[]"
    assert "/usr" not in seen.splitlines()
    assert "only-here" not in seen


async def test_environment_directory_functions_and_aliases_persist_over_exit(call) -> None:
    await call("terminal", command="cd /usr; export A=1; f() { echo fn $A; }; alias hi='echo hi'")
    result = await call("terminal", command="cd /usr/bin; export B=2; exit 7")
    assert result["exit_code"] == 7
    result = await call("terminal", command="pwd; f; echo $A$B\nhi")
    assert result["output"].splitlines() == ["/usr/bin", "fn 1", "12", "hi"]


async def test_background_commands_see_the_session(call) -> None:
    await call("terminal", command="cd /usr; export A=1; f() { echo fn $A; }")
    started = await call("terminal", command="pwd; f", background=True)
    ended = await call("process", action="wait", session_id=started["session_id"])
    assert ended["output"].splitlines() == ["/usr", "fn 1"]


async def test_workdir_holds_for_one_call(call) -> None:
    before = (await call("terminal", command="pwd"))["output"]
    assert (await call("terminal", command="pwd", workdir="/etc"))["output"] == "/etc"
    assert (await call("terminal", command="pwd"))["output"] == before


async def test_more_than_1024_open_files_change_nothing(call) -> None:
    with many_open_files(1_100):
        result = await call("terminal", command="echo hi; cd /usr; seq 1 30000 | tail -1")
        assert result == {"output": "hi\n30000", "exit_code": 0, "error": None}
        assert (await call("terminal", command="pwd"))["output"] == "/usr"


async def test_a_timeout_kills_the_whole_tree_and_keeps_the_output(call) -> None:
    mark = f"1{os.getpid()}7"
    command = f"echo first; (setsid sleep {mark} & sleep {mark} & trap '' TERM; sleep {mark}); wait"
    result = await call("terminal", command=command, timeout=1)
    assert result["exit_code"] == 124
    assert result["output"] == "first\n\n[Command timed out after 1s]"
    assert living(f"sleep {mark}") == []


async def test_a_background_child_that_holds_the_output_does_not_hang_the_call(call) -> None:
    started = time.monotonic()
    result = await call("terminal", command="sleep 30 & echo done")
    assert result["output"] == "done"
    assert time.monotonic() - started < 10


async def test_a_write_never_waits_for_another_rollout() -> None:
    class Stuck(FakeSandbox):
        async def write(
            self, path: str, data: bytes, *, mode: int | None = None, user: str | None = None
        ) -> None:
            await anyio.sleep_forever()

    stuck, free = (ToolDispatcher(each, list(NATIVE_TOOLS)) for each in (Stuck(), FakeSandbox()))
    arguments = '{"path": "/root/same", "content": "x"}'
    waiting = asyncio.ensure_future(stuck.call("write_file", arguments, "1"))
    with anyio.fail_after(60):
        assert (await free.call("write_file", arguments, "1")).error is None
    assert not waiting.done()
    waiting.cancel()


async def test_new_files_follow_the_umask_and_old_ones_keep_their_mode(call) -> None:
    await call("write_file", path="new.sh", content="x")
    await call("terminal", command="echo y > old.sh; chmod 750 old.sh")
    await call("write_file", path="old.sh", content="z")
    result = await call("terminal", command="umask; stat -c %a new.sh old.sh")
    assert result["output"].split() == ["0022", "644", "750"]


async def test_writing_to_a_directory_is_an_error(call) -> None:
    await call("terminal", command="mkdir d")
    result = await call("write_file", path="d", content="x")
    assert result["bytes_written"] == 0
    assert "Is a directory" in result["error"]
    assert (await call("terminal", command="ls -A d"))["output"] == ""


async def test_an_isolated_sandbox_guards_no_path() -> None:
    sandbox = FakeSandbox()
    sandbox.capabilities = frozenset({Capability.ISOLATION})
    tools = ToolDispatcher(sandbox, list(NATIVE_TOOLS))
    written = await tools.call("write_file", '{"path": "/etc/motd", "content": "x"}', "1")
    assert written.error is None
    assert sandbox.files["/etc/motd"] == b"x"
    assert (await tools.call("terminal", '{"command": "rm -rf /"}', "2")).error is None


HARMFUL = [
    "rm -rf /",
    "rm -rf /*",
    "a; rm -r -f /etc",
    "rm --recursive //etc/",
    "sudo env A=1 /bin/rm -rfv '/usr'",
    "sudo reboot",
    "if true; then reboot; fi",
    "shutdown -h now",
    "mkfs.ext4 /dev/sda",
    "kill -9 -1",
    "kill -- -1",
    "dd if=x of=/dev/sda",
    "echo x > /dev/sda1",
    ":(){ :|:& };:",
]


async def test_without_isolation_the_host_is_guarded(call_with) -> None:
    # On a fake, for the day the guard is broken: a real one would run these.
    sandbox = FakeSandbox()
    call = call_with(ToolDispatcher(sandbox, list(NATIVE_TOOLS)))
    for path in ("/etc/x", "//etc/x", "/usr/lib/x", "/root/../etc/x", "/root/.ssh/authorized_keys"):
        result = await call("write_file", path=path, content="x")
        assert "does not isolate" in result["error"], path
        result = await call("patch", mode="patch", patch=f"*** Add File: {path}\n+x")
        assert "does not isolate" in result["error"], path
    for command in HARMFUL:
        result = await call("terminal", command=command)
        assert result["status"] == "blocked", command
        assert (await call("terminal", command=command, background=True))["status"] == "blocked"
    assert sandbox.files == {}
    assert sandbox.commands == []


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf ./build /tmp/x",
        "rm -f /etc-not-there",
        "rm -rf /home/user/project",
        "echo 'rm -rf /tmp'",
        "true reboot",
        "echo x; # reboot the machine",
        "cat > notes <<E\nreboot it later\nE",
        "kill -1 99999",
        "kill -9 $!",
        "dd if=/dev/zero of=disk.img",
        "echo x > /dev/null",
    ],
)
def test_harmless_commands_are_not_guarded(command: str) -> None:
    assert refuse_command(command) is None


@pytest.mark.parametrize(
    "command",
    [
        "rm " + "-r " * 40_000,
        ":(){" * 30_000,
        "rm -r " * 20_000,
        "> " * 50_000,
        "a= " * 33_000,
        "x;" * 50_000,
    ],
    ids=["options", "bombs", "names", "redirections", "assignments", "commands"],
)
async def test_the_guard_is_cheap_on_any_command(command: str) -> None:
    started = time.thread_time()
    refuse_command(command)
    assert time.thread_time() - started < 0.2
    assert await guard_command("rm -rf /; " + command) is not None
    await guard_command(command)
    started = time.thread_time()
    await guard_command(command)
    assert time.thread_time() - started < 0.01


async def test_servers_ampersands_and_nohup_are_allowed(call) -> None:
    result = await call(
        "terminal",
        command="nohup sh -c 'sleep 0.1; echo up > up' >/dev/null 2>&1 & disown; echo ok",
    )
    assert result == {"output": "ok", "exit_code": 0, "error": None}
    result = await call(
        "terminal", command="for i in $(seq 50); do [ -e up ] && break; sleep 0.1; done; cat up"
    )
    assert result["output"] == "up"


async def test_search_finds_with_the_default_path_and_without_ripgrep(call, tmp_path: Path) -> None:
    await call("write_file", path="a/b.txt", content="one\ntwo\n")
    first = await call("search_files", pattern="one|two+")
    assert first["total_count"] == 2
    shadow = tmp_path / "bin"
    shadow.mkdir()
    (shadow / "rg").write_text("#!/bin/sh\necho 'no ripgrep here' >&2\nexit 3\n")
    (shadow / "rg").chmod(0o755)
    await call("terminal", command=f"export PATH={shadow}:$PATH")
    assert await call("search_files", pattern="one|two+") == first


async def test_secrets_in_output_are_shown_as_they_are(call) -> None:
    secret = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789AKIAIOSFODNN7EXAMPLE"
    assert (await call("terminal", command=f"echo API_KEY={secret}"))["output"].endswith(secret)
    await call("write_file", path=".env", content=f"TOKEN={secret}\n")
    assert (await call("read_file", path=".env"))["content"] == f"1|TOKEN={secret}"


async def test_processes_belong_to_their_rollout_alone(backend: Backend, call_with) -> None:
    sandboxes: list[Sandbox] = [await backend.create(SandboxSpec()) for _ in range(2)]
    first, second = (ToolDispatcher(each, list(NATIVE_TOOLS)) for each in sandboxes)
    one, two = call_with(first), call_with(second)
    started = await one("terminal", command="sleep 60", background=True)
    session_id = started["session_id"]
    assert (await two("process", action="list"))["processes"] == []
    for action in ("poll", "log", "wait", "kill"):
        assert (await two("process", action=action, session_id=session_id))["status"] == "not_found"
    assert (await one("process", action="poll", session_id=session_id))["status"] == "running"
    await first.aclose()


async def test_processes_are_capped_per_rollout_and_the_ended_make_room(
    sandbox: Sandbox, call_with
) -> None:
    tools = ToolDispatcher(sandbox, list(NATIVE_TOOLS), settings=ToolSettings(max_processes=2))
    call = call_with(tools)
    short = await call("terminal", command="true", background=True)
    await call("terminal", command="sleep 60", background=True)
    await call("process", action="wait", session_id=short["session_id"])
    third = await call("terminal", command="sleep 60", background=True)
    assert third["exit_code"] == 0
    assert (await call("process", action="poll", session_id=short["session_id"]))["status"] == (
        "not_found"
    )
    fourth = await call("terminal", command="sleep 60", background=True)
    assert "2 background processes are running already" in fourth["error"]
    await tools.aclose()


class Counted:
    """Passes everything on to a sandbox and counts the requests made of it."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self.requests: list[str] = []

    def __getattr__(self, name: str) -> object:
        value = getattr(self._sandbox, name)
        if name in ("exec", "stream", "read", "write", "list", "upload", "download"):
            self.requests.append(name)
        return value


async def test_file_tools_take_few_round_trips(sandbox: Sandbox, call_with) -> None:
    counted = Counted(sandbox)
    call = call_with(ToolDispatcher(counted, list(NATIVE_TOOLS)))  # type: ignore[arg-type]
    await call("terminal", command="mkdir d; seq 1 9 > d/a.txt")
    expected = {
        ("read_file", ("read",)): {"path": "d/a.txt"},
        ("write_file", ("read", "write")): {"path": "d/b.txt", "content": "x"},
        ("patch", ("read", "write", "read")): {
            "mode": "replace",
            "path": "d/a.txt",
            "old_string": "5",
            "new_string": "five",
        },
        ("search_files", ("stream",)): {"pattern": "five"},
    }
    for (name, requests), arguments in expected.items():
        counted.requests.clear()
        assert "error" not in await call(name, **arguments)
        assert tuple(counted.requests) == requests, name


async def test_output_is_cut_while_it_streams(call) -> None:
    tracemalloc.start()
    try:
        result = await call("terminal", command="echo start; yes | head -c 60000000; echo end")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert result["output"].startswith("start\ny\n")
    assert result["output"].endswith("y\nend")
    assert len(result["output"]) < 50_200
    assert "chars omitted out of 60,000,010 total" in result["output"]
    assert "[OUTPUT TRUNCATED - 59,950,010 chars" in result["output"]


async def test_results_of_any_bytes_are_valid_json(call, tools: ToolDispatcher) -> None:
    await call("terminal", command="printf 'x\\377\\001\\n' > $(printf 'odd\\377name')")
    for name, arguments in (
        ("terminal", {"command": "cat odd*; ls; head -c 3000 /dev/urandom"}),
        ("search_files", {"pattern": "x"}),
        ("search_files", {"pattern": "odd*", "target": "files"}),
    ):
        result = await tools.call(name, orjson.dumps(arguments).decode(), "1")
        orjson.loads(result.content)
