import asyncio
import inspect
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import orjson
import pytest
import pytest_asyncio

from hermes_rl.context import ContextCall, SyncToolContext, ToolContext, run_sync_reward
from hermes_rl.errors import MissingExtra, RewardError
from hermes_rl.sandbox import BackendSettings, Sandbox, SandboxSpec, open_backend
from hermes_rl.testing.fake_sandbox import FakeSandbox
from hermes_rl.testing.hosting import hosted
from hermes_rl.tools import NATIVE_TOOLS, Tool, ToolDispatcher


@pytest_asyncio.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    settings = BackendSettings(run_id=f"context-{tmp_path.name}", cache_dir=tmp_path / "cache")
    async with hosted(open_backend("local", settings)) as backend:
        created = await backend.create(SandboxSpec())
        yield created
        await created.close()


@pytest_asyncio.fixture
async def tools(sandbox: Sandbox) -> AsyncIterator[ToolDispatcher]:
    dispatcher = ToolDispatcher(sandbox, ["terminal", "process"])
    yield dispatcher
    await dispatcher.aclose()


async def agent_does(tools: ToolDispatcher, command: str, **options: object) -> dict:
    arguments = orjson.dumps({"command": command, **options}).decode()
    return orjson.loads((await tools.call("terminal", arguments, "agent")).content)


async def test_the_documented_three_calls(sandbox: Sandbox, tools: ToolDispatcher) -> None:
    await agent_does(tools, "echo 'print(1)' > solution.py")
    ctx = ToolContext(sandbox, tools)
    test = await ctx.terminal("test -f solution.py && echo ok")
    assert (test["exit_code"], test["output"]) == (0, "ok")
    assert (await ctx.read_file("solution.py"))["content"] == "print(1)\n"
    assert (await ctx.search("print", "."))["total_count"] == 1
    assert ctx.pending() == []


async def test_commands_start_where_the_agent_ended_with_the_original_environment(
    sandbox: Sandbox, tools: ToolDispatcher
) -> None:
    await agent_does(tools, "mkdir -p d; cd d; export A=1 PATH=/nowhere; ls() { echo fake; }")
    ctx = ToolContext(sandbox, tools)
    seen = await ctx.terminal("basename $PWD; echo [$A]; ls -d /etc")
    assert seen["output"].splitlines() == ["d", "[]", "/etc"]
    assert (await ctx.write_file("here", "x"))["bytes_written"] == 1
    assert (await ctx.terminal("cat here; cd /usr"))["output"] == "x"
    assert (await ctx.terminal("pwd"))["output"] == "/usr"
    assert (await agent_does(tools, "builtin pwd"))["output"].endswith("/d")


async def test_the_session_of_the_agent_can_be_asked_for(
    sandbox: Sandbox, tools: ToolDispatcher
) -> None:
    await agent_does(tools, "export A=1; f() { echo fn $A; }; cd /usr")
    ctx = ToolContext(sandbox, tools)
    assert (await ctx.terminal("f; pwd", session="agent"))["output"] == "fn 1\n/usr"
    with pytest.raises(RewardError, match="session must be 'agent'"):
        await ctx.terminal("f", session="agnet")


async def test_a_deleted_directory_of_the_agent_does_not_stop_the_reward(
    sandbox: Sandbox, tools: ToolDispatcher
) -> None:
    await agent_does(tools, "mkdir d; cd d; rmdir ../d")
    assert (await ToolContext(sandbox, tools).terminal("echo on"))["exit_code"] == 0


async def test_processes_of_the_agent_live_and_those_of_the_reward_end_with_cleanup(
    sandbox: Sandbox, tools: ToolDispatcher
) -> None:
    theirs = await agent_does(tools, "sleep 4324", background=True)
    ctx = ToolContext(sandbox, tools)
    ours = orjson.loads(
        await ctx.call_tool("terminal", {"command": "sleep 4325", "background": True})
    )
    listed = orjson.loads(await ctx.call_tool("process", {"action": "list"}))["processes"]
    assert [each["session_id"] for each in listed] == [theirs["session_id"], ours["session_id"]]
    await ctx.cleanup()
    left = await ctx.terminal("pgrep -fx 'sleep 432[45]' | wc -l")
    assert left["output"] == "1"
    assert (await ctx.terminal("echo still open"))["exit_code"] == 0


async def test_a_timeout_is_any_number_of_seconds(sandbox: Sandbox, tools: ToolDispatcher) -> None:
    result = await ToolContext(sandbox, tools).terminal("sleep 30", timeout=0.3)
    assert result["exit_code"] == 124


async def test_missing_and_undecodable_files(sandbox: Sandbox, tools: ToolDispatcher) -> None:
    ctx = ToolContext(sandbox, tools)
    missing = await ctx.read_file("nope")
    assert missing["content"] == ""
    assert "No such file" in missing["error"]
    await ctx.write_file("f", b"a\xffb\nc")
    assert await ctx.read_file("f") == {"content": "a\ufffdb\nc", "total_lines": 2, "file_size": 5}
    assert "error" in await ctx.write_file("/proc/no/file", "x")


async def test_transfers_keep_every_byte(
    sandbox: Sandbox, tools: ToolDispatcher, tmp_path: Path
) -> None:
    ctx = ToolContext(sandbox, tools)
    data = os.urandom(300_000)
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "blob").write_bytes(data)
    (source / "sub" / "empty").write_bytes(b"")
    assert await ctx.upload_file(source / "blob", "up/blob") == {"exit_code": 0, "output": ""}
    sent = await ctx.upload_dir(source, "tree")
    assert [each["path"] for each in sent] == ["tree/blob", "tree/sub/empty"]
    target = tmp_path / "target" / "deep" / "blob"
    assert await ctx.download_file("up/blob", target) == {"success": True, "bytes": 300_000}
    assert target.read_bytes() == data
    got = await ctx.download_dir("tree", tmp_path / "back")
    assert got == [
        {"success": True, "path": "blob", "bytes": 300_000},
        {"success": True, "path": "sub/empty", "bytes": 0},
    ]
    assert (tmp_path / "back" / "blob").read_bytes() == data


async def test_transfers_that_cannot_be_made(
    sandbox: Sandbox, tools: ToolDispatcher, tmp_path: Path
) -> None:
    ctx = ToolContext(sandbox, tools)
    missing = await ctx.download_file("nope", tmp_path / "x")
    assert missing["success"] is False
    assert (await ctx.download_dir("nope", tmp_path / "y"))[0]["success"] is False
    with pytest.raises(RewardError, match="there is no file"):
        await ctx.upload_file(tmp_path / "nope", "x")
    with pytest.raises(RewardError, match="there is no directory"):
        await ctx.upload_dir(tmp_path / "nope", "x")
    await ctx.terminal("mkdir d")
    assert "use ctx.download_dir" in (await ctx.download_file("d", tmp_path / "z"))["error"]


async def test_a_hostile_tree_does_not_leave_the_target(
    sandbox: Sandbox, tools: ToolDispatcher, tmp_path: Path
) -> None:
    await agent_does(tools, "mkdir t; ln -s /etc/passwd t/link; echo x > t/file")
    got = await ToolContext(sandbox, tools).download_dir("t", tmp_path / "t")
    assert "root:" not in "".join(
        path.read_text() for path in (tmp_path / "t").rglob("*") if path.is_file()
    )
    assert got


async def test_web_and_browser_name_the_extra() -> None:
    sandbox = FakeSandbox()
    ctx = ToolContext(sandbox, ToolDispatcher(sandbox, ["terminal"]))
    for call in (
        ctx.web_search("q"), ctx.web_extract(["u"]), ctx.browser_navigate("u"),
        ctx.browser_snapshot(),
    ):  # fmt: skip
        with pytest.raises(MissingExtra, match=r"hermes_rl\[hermes\]"):
            await call


async def test_tools_beyond_the_native_ones_are_reached() -> None:
    async def search(scope: object, arguments: dict) -> dict:
        return {"results": [arguments["query"]]}

    parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    web = Tool(name="web_search", description="", parameters=parameters, handler=search)
    sandbox = FakeSandbox()
    ctx = ToolContext(sandbox, ToolDispatcher(sandbox, ["web_search"], extra_tools=[web]))
    assert await ctx.web_search("q") == {"results": ["q"]}
    assert await ctx.call_tool("web_search", {"query": "r"}) == '{"results":["r"]}'


async def test_reward_code_reaches_tools_that_the_agent_had_not() -> None:
    sandbox = FakeSandbox()
    ctx = ToolContext(sandbox, ToolDispatcher(sandbox, ["todo"]))
    assert orjson.loads(await ctx.call_tool("write_file", {"path": "/root/f", "content": "x"}))
    assert sandbox.files == {"/root/f": b"x"}


def context() -> ToolContext:
    sandbox = FakeSandbox()
    return ToolContext(sandbox, ToolDispatcher(sandbox, list(NATIVE_TOOLS)))


def line_of(offset: int) -> str:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"{__file__}:{frame.f_back.f_lineno + offset}"


@pytest.mark.parametrize(
    "use",
    [
        lambda call: call["exit_code"],
        lambda call: call.get("exit_code"),
        lambda call: "x" in call,
        lambda call: bool(call),
        lambda call: list(call),
        lambda call: len(call),
    ],
)
async def test_using_a_call_as_its_result_names_the_line(use) -> None:
    ctx = context()
    where = line_of(1)
    call = ctx.terminal("x")
    with pytest.raises(RewardError) as caught:
        use(call)
    assert str(caught.value).startswith(f"{where}: ctx.terminal(...) was not awaited")
    assert "await ctx.terminal(...)" in str(caught.value)


async def test_calls_that_were_never_awaited_are_reported() -> None:
    ctx = context()
    await ctx.terminal("x")
    where = line_of(1)
    ctx.download_file("a", "b")
    (problem,) = ctx.pending()
    assert problem.startswith(f"{where}: ctx.download_file(...) was not awaited, so it never ran.")


async def test_a_call_runs_once() -> None:
    ctx = context()
    call = ctx.terminal("x")
    await call
    with pytest.raises(RewardError, match="awaited twice"):
        await call
    assert isinstance(call, ContextCall)


async def test_calls_can_be_gathered() -> None:
    ctx = context()
    results = await asyncio.gather(ctx.terminal("a"), ctx.read_file("/nope"))
    assert results[0]["exit_code"] == 0
    assert ctx.pending() == []


async def test_blocking_reward_code_runs_in_a_thread(
    sandbox: Sandbox, tools: ToolDispatcher, tmp_path: Path
) -> None:
    await agent_does(tools, "echo 42 > answer; mkdir d; echo x > d/f")
    loop_thread = threading.get_ident()

    def compute_reward(ctx: SyncToolContext) -> float:
        assert threading.get_ident() != loop_thread
        test = ctx.terminal("cat answer")
        content = ctx.read_file("answer")
        assert ctx.search("4.")["total_count"] == 1
        assert ctx.download_file("answer", tmp_path / "a")["success"] is True
        assert ctx.download_dir("d", tmp_path / "d")[0]["path"] == "f"
        assert ctx.upload_file(tmp_path / "a", "again")["exit_code"] == 0
        assert ctx.upload_dir(tmp_path / "d", "e")[0]["exit_code"] == 0
        assert ctx.write_file("w", "x")["bytes_written"] == 1
        assert "exit_code" in ctx.call_tool("terminal", {"command": "true"})
        ctx.cleanup()
        return float(test["output"]) if content["content"] == "42\n" else 0.0

    ctx = ToolContext(sandbox, tools)
    limiter = anyio.CapacityLimiter(2)
    assert await run_sync_reward(compute_reward, ctx, limiter=limiter) == 42.0
    assert ctx.pending() == []
    assert limiter.borrowed_tokens == 0


async def test_a_coroutine_that_calls_without_await_runs_in_its_own_loop() -> None:
    async def compute_reward(ctx: SyncToolContext) -> float:
        await asyncio.sleep(0)
        return 1.0 if ctx.terminal("x")["exit_code"] == 0 else 0.0

    limiter = anyio.CapacityLimiter(1)
    assert await run_sync_reward(compute_reward, context(), limiter=limiter) == 1.0


async def test_errors_of_blocking_reward_code_are_raised() -> None:
    def compute_reward(ctx: SyncToolContext) -> float:
        ctx.web_search("q")
        return 0.0

    limiter = anyio.CapacityLimiter(1)
    with pytest.raises(MissingExtra):
        await run_sync_reward(compute_reward, context(), limiter=limiter)
    assert limiter.borrowed_tokens == 0


async def test_a_cancelled_reward_keeps_its_place_until_its_thread_has_ended() -> None:
    go_on, ended = threading.Event(), anyio.Event()
    late: list[str] = []
    ctx = context()
    limiter = anyio.CapacityLimiter(1)

    def compute_reward(blocking: SyncToolContext) -> float:
        go_on.wait(10)
        try:
            blocking.terminal("x")
        except RewardError as error:
            late.append(str(error))
        return 0.0

    with anyio.move_on_after(0.1) as scope:
        await run_sync_reward(compute_reward, ctx, limiter=limiter)
    assert scope.cancelled_caught
    assert limiter.borrowed_tokens == 1
    go_on.set()
    with anyio.fail_after(60):
        async with limiter:
            ended.set()
    assert late == ["ctx.terminal(...) came too late: the deadline of the reward has passed."]
    assert ctx.pending() == []


async def test_a_cancelled_reward_that_waits_for_a_command_ends_it(
    sandbox: Sandbox, tools: ToolDispatcher
) -> None:
    limiter = anyio.CapacityLimiter(1)

    def compute_reward(ctx: SyncToolContext) -> float:
        ctx.terminal("sleep 4326")
        return 1.0

    with anyio.move_on_after(0.5):
        await run_sync_reward(compute_reward, ToolContext(sandbox, tools), limiter=limiter)
    with anyio.fail_after(60):
        async with limiter:
            found = await sandbox.exec("pgrep -fx 'sleep 4326'", timeout_s=5, session=None)
    assert found.exit_code == 1


ABANDONED = """
import sys, time, anyio
from hermes_rl.context import ToolContext, run_sync_reward
from hermes_rl.sandbox import BackendSettings, SandboxSpec, open_backend
from hermes_rl.tools.dispatcher import ToolDispatcher

def reward(ctx):
    time.sleep(float(sys.argv[1]))
    ctx.terminal("true")
    time.sleep(600)

async def main():
    async with open_backend("local", BackendSettings(run_id="abandoned")) as backend:
        sandbox = await backend.create(SandboxSpec())
        tools = ToolDispatcher(sandbox, ["terminal"])
        with anyio.move_on_after(0.3):
            await run_sync_reward(
                reward, ToolContext(sandbox, tools), limiter=anyio.CapacityLimiter(1)
            )
        await tools.aclose()
        await sandbox.close()

anyio.run(main)
print("loop ended", flush=True)
"""


@pytest.mark.parametrize("calls_after_s", [0.0, 0.35, 600.0])
def test_exit_does_not_wait_for_the_thread_of_an_abandoned_reward(calls_after_s: float) -> None:
    """Whether it sleeps, or calls its context while or after the loop stops."""
    command = [sys.executable, "-W", "ignore", "-c", ABANDONED, str(calls_after_s)]
    ended = subprocess.run(command, capture_output=True, timeout=30, check=False, text=True)
    assert (ended.stdout, ended.returncode) == ("loop ended\n", 0), ended.stderr
