import anyio
import pytest

from hermes_rl.sandbox import Capability, Sandbox
from hermes_rl.tools import NATIVE_TOOLS, ToolDispatcher, ToolSettings


async def start(call, command: str, **options: object) -> str:
    started = await call("terminal", command=command, background=True, **options)
    assert started["output"] == "Background process started"
    assert started["exit_code"] == 0
    assert started["error"] is None
    assert isinstance(started["pid"], int)
    return started["session_id"]


async def news(call) -> list[dict]:
    """Return what the next results tell; [] if nothing comes within some seconds."""
    for _ in range(60):
        result = await call("terminal", command="sleep 0.05")
        if "notifications" in result:
            return result["notifications"]
    return []


async def test_a_started_process_is_listed(call) -> None:
    session_id = await start(call, "echo hi; sleep 60")
    await call("process", action="wait", session_id=session_id, timeout=1)
    (listed,) = (await call("process", action="list"))["processes"]
    assert listed["session_id"] == session_id
    assert listed["command"] == "echo hi; sleep 60"
    assert listed["status"] == "running"
    assert listed["output_preview"] == "hi\n"
    assert listed["uptime_seconds"] in range(5)
    assert "exit_code" not in listed


async def test_wait_returns_the_end(call) -> None:
    session_id = await start(call, "echo hi; exit 4")
    assert await call("process", action="wait", session_id=session_id) == {
        "status": "exited",
        "command": "echo hi; exit 4",
        "exit_code": 4,
        "completion_reason": "exited",
        "termination_source": None,
        "output": "hi\n",
    }


async def test_wait_gives_up_after_its_timeout(call) -> None:
    session_id = await start(call, "sleep 60")
    waited = await call("process", action="wait", session_id=session_id, timeout=1)
    assert waited["status"] == "timeout"
    assert waited["timeout_note"] == "Waited 1s, process still running"


async def test_a_long_wait_is_shortened_and_says_so(sandbox: Sandbox, call_with) -> None:
    settings = ToolSettings(command_timeout_s=1)
    tools = ToolDispatcher(sandbox, list(NATIVE_TOOLS), settings=settings)
    call = call_with(tools)
    session_id = await start(call, "sleep 60")
    waited = await call("process", action="wait", session_id=session_id, timeout=1000)
    assert "1000s was shortened" in waited["timeout_note"]
    await tools.aclose()


async def test_kill_ends_the_process_and_its_children(call) -> None:
    session_id = await start(call, "sleep 4321 & sleep 4321; echo never")
    killed = await call("process", action="kill", session_id=session_id)
    assert killed["status"] == "killed"
    assert killed["completion_reason"] == "killed"
    assert killed["termination_source"] == "process.kill"
    assert (await call("terminal", command="pgrep -fx 'sleep 4321' | wc -l"))["output"] == "0"
    again = await call("process", action="kill", session_id=session_id)
    assert again["status"] == "already_exited"


async def test_poll_shows_state_and_latest_output(call) -> None:
    session_id = await start(call, "seq 1 1000")
    await call("process", action="wait", session_id=session_id)
    polled = await call("process", action="poll", session_id=session_id)
    assert polled["status"] == "exited"
    assert polled["exit_code"] == 0
    assert polled["output_preview"].endswith("999\n1000\n")
    assert len(polled["output_preview"]) == 1000


async def test_log_pages_by_lines(call) -> None:
    session_id = await start(call, "seq 1 500")
    await call("process", action="wait", session_id=session_id)
    log = await call("process", action="log", session_id=session_id)
    assert log["total_lines"] == 500
    assert log["showing"] == "200 lines"
    assert log["output"].startswith("301\n")
    page = await call("process", action="log", session_id=session_id, offset=10, limit=2)
    assert page["output"] == "11\n12"


async def test_a_long_log_says_what_was_dropped(call) -> None:
    session_id = await start(call, "seq 1 100000")
    await call("process", action="wait", session_id=session_id)
    log = await call("process", action="log", session_id=session_id, limit=1)
    assert log["output"] == "100000"
    assert log["dropped_bytes"] == 588_895 - 200_000


async def test_input_can_be_written_submitted_and_closed(call) -> None:
    session_id = await start(call, "read a; echo got $a; cat; echo end")
    sent = await call("process", action="submit", session_id=session_id, data="hello")
    assert sent == {"status": "ok", "bytes_written": 6}
    await call("process", action="write", session_id=session_id, data="raw")
    closed = await call("process", action="close", session_id=session_id)
    assert closed == {"status": "ok", "message": "EOF sent"}
    ended = await call("process", action="wait", session_id=session_id)
    assert ended["output"] == "got hello\nrawend\n"
    late = await call("process", action="write", session_id=session_id, data="x")
    assert late == {"status": "already_exited", "error": "Process has already finished"}


async def test_a_process_that_closed_its_input_is_an_error_result(call) -> None:
    session_id = await start(call, "exec 0<&-; echo closed; sleep 60")
    for _ in range(50):
        if (await call("process", action="poll", session_id=session_id))["output_preview"]:
            break
        await anyio.sleep(0.05)
    answers = [
        await call("process", action="write", session_id=session_id, data="x" * 500_000)
        for _ in range(2)
    ]
    assert answers[-1]["status"] == "error"


async def test_a_pseudo_terminal_is_one(call, sandbox: Sandbox) -> None:
    if Capability.PTY not in sandbox.capabilities:
        pytest.skip("this sandbox has no pseudo-terminals")
    session_id = await start(call, "test -t 0 && echo terminal; read x; echo got $x", pty=True)
    await call("process", action="submit", session_id=session_id, data="hi")
    ended = await call("process", action="wait", session_id=session_id, timeout=10)
    assert "terminal" in ended["output"]
    assert "got hi" in ended["output"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"action": "poll"}, "session_id is required for poll"),
        ({"action": "poll", "session_id": "proc_nope"}, "No process with ID proc_nope"),
        ({"action": "bogus"}, "must be one of list, poll, log, wait, kill, write, submit, close"),
    ],
)
async def test_mistakes_are_named(call, arguments: dict, expected: str) -> None:
    assert expected in (await call("process", **arguments))["error"]


async def test_data_is_required_for_write(call) -> None:
    session_id = await start(call, "sleep 60")
    written = await call("process", action="write", session_id=session_id)
    assert written["error"] == "data is required for write"


async def test_an_end_is_told_once_with_a_later_result(call) -> None:
    session_id = await start(call, "sleep 0.3; echo hi; exit 3", notify_on_complete=True)
    assert await news(call) == [
        {
            "type": "completion",
            "session_id": session_id,
            "command": "sleep 0.3; echo hi; exit 3",
            "exit_code": 3,
            "output": "hi\n",
        }
    ]
    assert "notifications" not in await call("terminal", command="true")


async def test_an_end_that_was_seen_is_not_told_again(call) -> None:
    session_id = await start(call, "sleep 0.3", notify_on_complete=True)
    waited = await call("process", action="wait", session_id=session_id)
    assert "notifications" not in waited
    assert "notifications" not in await call("terminal", command="true")


async def test_watched_lines_are_told_when_they_are_complete(call) -> None:
    command = "printf 'ready'; read a; printf ' now\\nother\\nready too\\n'; sleep 60"
    session_id = await start(call, command, watch_patterns=["ready"])
    assert "notifications" not in await call("terminal", command="sleep 0.4")
    await call("process", action="submit", session_id=session_id, data="")
    lines: list[str] = []
    while len(lines) < 2:  # they may come in two pieces
        for told in await news(call):
            assert told["type"] == "watch_match"
            lines += [match["line"] for match in told["matches"]]
    assert lines == ["ready now", "ready too"]
    assert "notifications" not in await call("terminal", command="true")


async def test_many_watched_lines_are_counted(call) -> None:
    at_once = "seq 1 100 | sed 's/$/ x/' | { sleep 0.3; cat; }"  # a shell's echo writes by lines
    await start(call, at_once, watch_patterns=["x"])
    (told,) = await news(call)
    assert (len(told["matches"]), told["suppressed"]) == (20, 80)


async def test_news_is_also_attached_to_an_error(call) -> None:
    await start(call, "sleep 0.3", notify_on_complete=True)
    for _ in range(100):
        result = await call("terminal", cmd="true")
        assert "error" in result
        if "notifications" in result:
            break
        await anyio.sleep(0.05)
    assert result["notifications"][0]["type"] == "completion"


async def test_closing_the_tools_kills_what_runs_in_the_background(
    sandbox: Sandbox, call_with
) -> None:
    tools = ToolDispatcher(sandbox, list(NATIVE_TOOLS))
    await start(call_with(tools), "sleep 4322")
    await tools.aclose()
    await tools.aclose()
    found = await sandbox.exec("pgrep -fx 'sleep 4322'", timeout_s=10, session=None)
    assert found.exit_code == 1


async def test_a_background_command_that_cannot_start_says_why(call) -> None:
    session_id = await start(call, "echo x", workdir="/no/such/dir")
    ended = await call("process", action="wait", session_id=session_id)
    assert (ended["status"], ended["exit_code"]) == ("exited", 126)
    assert "/no/such/dir" in ended["output"]
