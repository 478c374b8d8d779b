import anyio
import orjson
import pytest

from hermes_rl.errors import SandboxGone, SandboxPermissionDenied, ToolFault, UnknownName
from hermes_rl.sandbox import Sandbox
from hermes_rl.testing.fake_sandbox import FakeSandbox
from hermes_rl.tools import (
    NATIVE_TOOLS,
    Dispatcher,
    Tool,
    ToolDispatcher,
    ToolOutcome,
    ToolScope,
    ToolSettings,
)
from hermes_rl.types import JSONObject, ToolResult


def tool(name: str, outcome: ToolOutcome | Exception, **options: object) -> Tool:
    async def handler(scope: ToolScope, arguments: JSONObject) -> ToolOutcome:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
    return Tool(name=name, description="d", parameters=parameters, handler=handler, **options)


def dispatcher(*tools: Tool, settings: ToolSettings | None = None) -> ToolDispatcher:
    names = [each.name for each in tools]
    return ToolDispatcher(FakeSandbox(), names, extra_tools=tools, settings=settings)


def test_it_is_a_dispatcher() -> None:
    made: Dispatcher = ToolDispatcher(FakeSandbox(), ["terminal"])
    assert made.is_read_only("terminal") is False
    assert made.is_read_only("nope") is False


def test_schemas_are_those_of_the_names_in_their_order() -> None:
    made = ToolDispatcher(FakeSandbox(), ["todo", "read_file"])
    assert made.names == ("todo", "read_file")
    assert [schema["function"]["name"] for schema in made.schemas] == ["todo", "read_file"]
    assert all(schema["type"] == "function" for schema in made.schemas)


SIGNATURES = {
    "terminal": (
        ["command", "background", "timeout", "workdir", "pty", "notify_on_complete",
         "watch_patterns"],
        ["command"],
    ),
    "process": (["action", "session_id", "data", "timeout", "offset", "limit"], ["action"]),
    "read_file": (["path", "offset", "limit"], ["path"]),
    "write_file": (["path", "content", "cross_profile"], ["path", "content"]),
    "patch": (
        ["mode", "path", "old_string", "new_string", "replace_all", "patch", "cross_profile"],
        ["mode"],
    ),
    "search_files": (
        ["pattern", "target", "path", "file_glob", "limit", "offset", "output_mode", "context"],
        ["pattern"],
    ),
    "todo": (["todos", "merge"], []),
}  # fmt: skip


def test_native_tools_keep_the_names_and_parameters_of_hermes() -> None:
    assert set(NATIVE_TOOLS) == set(SIGNATURES)
    for name, (properties, required) in SIGNATURES.items():
        parameters = NATIVE_TOOLS[name].parameters
        assert list(parameters["properties"]) == properties, name
        assert parameters.get("required", []) == required, name


def test_only_reading_and_searching_may_run_beside_others() -> None:
    reading = {name for name, each in NATIVE_TOOLS.items() if each.read_only}
    assert reading == {"read_file", "search_files"}


def test_an_unknown_name_is_refused_when_the_dispatcher_is_made() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'terminal'"):
        ToolDispatcher(FakeSandbox(), ["termnial"])


async def test_an_unknown_tool_is_an_error_with_the_nearest_name() -> None:
    made = ToolDispatcher(FakeSandbox(), ["terminal", "read_file"])
    result = await made.call("raed_file", "{}", "1")
    assert result.error == (
        "Unknown tool 'raed_file'. Did you mean 'read_file'? Available tools: terminal, read_file."
    )
    assert orjson.loads(result.content) == {"error": result.error}


async def test_a_known_tool_that_is_not_offered_is_unknown() -> None:
    result = await ToolDispatcher(FakeSandbox(), ["terminal"]).call("todo", "{}", "1")
    assert "Unknown tool 'todo'" in str(result.error)


@pytest.mark.parametrize("arguments", ["", "{", "[]", '{"n": "x"}', '{"m": 1}', "\ud800", "nul"])
async def test_no_arguments_of_a_model_raise(arguments: str) -> None:
    result = await dispatcher(tool("t", {"ok": True})).call("t", arguments, "1")
    assert isinstance(orjson.loads(result.content), dict)
    assert (result.error is None) == (arguments == "")


async def test_results_may_be_objects_text_or_finished() -> None:
    parts = [{"type": "text", "text": "x"}]
    made = dispatcher(
        tool("a", {"x": 1}), tool("b", "text"), tool("c", ToolResult(parts, "e")),
        tool("d", {"error": "bad"}),
    )  # fmt: skip
    assert await made.call("a", "", "1") == ToolResult('{"x":1}')
    assert await made.call("b", "", "1") == ToolResult("text")
    assert await made.call("c", "", "1") == ToolResult(parts, "e")
    assert await made.call("d", "", "1") == ToolResult('{"error":"bad"}', "bad")


async def test_an_extra_tool_replaces_a_native_one_of_its_name() -> None:
    assert (await dispatcher(tool("terminal", "mine")).call("terminal", "", "1")).content == "mine"


async def test_a_lost_sandbox_is_raised_and_a_file_error_is_not() -> None:
    made = dispatcher(
        tool("gone", SandboxGone("it is gone")), tool("denied", SandboxPermissionDenied("denied"))
    )
    with pytest.raises(SandboxGone):
        await made.call("gone", "", "1")
    assert (await made.call("denied", "", "1")).error == "denied"


async def test_a_bug_of_a_tool_is_a_fault_and_no_result() -> None:
    with pytest.raises(ToolFault, match=r"Tool 't' broke: ZeroDivisionError"):
        await dispatcher(tool("t", ZeroDivisionError("x"))).call("t", "", "1")


async def test_a_call_that_passes_its_deadline_is_an_error() -> None:
    async def forever(scope: ToolScope, arguments: JSONObject) -> str:
        await anyio.sleep_forever()
        return ""

    slow = Tool(
        name="slow", description="", parameters={"type": "object"}, handler=forever,
        deadline_s=0.05,
    )  # fmt: skip
    result = await dispatcher(slow).call("slow", "", "1")
    assert result.error == "slow did not finish within 0.05 s and was cancelled."


async def test_the_handler_sees_its_call_id_and_coerced_arguments() -> None:
    seen: list[object] = []

    async def handler(scope: ToolScope, arguments: JSONObject) -> str:
        seen.extend((scope.call_id, arguments))
        return ""

    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
    made = dispatcher(Tool(name="t", description="", parameters=parameters, handler=handler))
    await made.call("t", '{"n": "5"}', "call-9")
    assert seen == ["call-9", {"n": 5}]


async def test_a_long_result_is_saved_in_the_sandbox_and_shown_in_part() -> None:
    sandbox = FakeSandbox()
    long = "x" * 100_001
    big = tool("big", long)
    made = ToolDispatcher(sandbox, ["big"], extra_tools=[big])
    content = (await made.call("big", "", "1")).content
    assert content.startswith(
        "<persisted-output>\nThis tool result was too large (100,001 characters, 97.7 KB).\n"
        "Full output saved to: /tmp/hermes-results/1.txt\n"
    )
    assert content.endswith(
        "Preview (first 1,500 chars):\n" + "x" * 1_500 + "\n</persisted-output>"
    )
    assert sandbox.files["/tmp/hermes-results/1.txt"] == long.encode()


async def test_a_result_that_cannot_be_saved_says_so() -> None:
    class ReadOnly(FakeSandbox):
        async def write(
            self, path: str, data: bytes, *, mode: int | None = None, user: str | None = None
        ) -> None:
            raise SandboxPermissionDenied("read-only file system", path=path)

    made = ToolDispatcher(ReadOnly(), ["b"], extra_tools=[tool("b", "x" * 200_000)])
    content = (await made.call("b", "", "1")).content
    assert "could not be saved (read-only file system)" in content
    assert len(content) < 2_000


async def test_the_results_of_one_turn_are_bounded_together() -> None:
    made = dispatcher(tool("t", "x" * 90_000))
    made.begin_turn()
    sizes = [len((await made.call("t", "", "1")).content) for _ in range(4)]
    assert sizes[:2] == [90_000, 90_000]
    assert max(sizes[2:]) < 2_000
    made.begin_turn()
    assert len((await made.call("t", "", "1")).content) == 90_000


async def test_without_turns_there_is_no_budget_of_a_turn() -> None:
    made = dispatcher(tool("t", "x" * 90_000))
    assert [len((await made.call("t", "", "1")).content) for _ in range(4)] == [90_000] * 4


async def test_reading_a_file_is_never_replaced_by_a_saved_result() -> None:
    sandbox = FakeSandbox()
    sandbox.files["/root/f"] = b"x" * 1_900 + b"\n"
    sandbox.files["/root/f"] *= 52
    made = ToolDispatcher(sandbox, ["read_file"], settings=ToolSettings(max_result_chars=5_000))
    content = (await made.call("read_file", '{"path": "/root/f"}', "1")).content
    assert orjson.loads(content)["total_lines"] == 52


async def test_news_of_processes_is_attached_to_text_and_parts_too(sandbox: Sandbox) -> None:
    parts: list[JSONObject] = [{"type": "text", "text": "p"}]
    extra = [tool("text", "plain"), tool("json", '{"a": 1}'), tool("parts", ToolResult(parts))]
    made = ToolDispatcher(sandbox, ["terminal", *(e.name for e in extra)], extra_tools=extra)
    for name in ("text", "json", "parts"):
        start = {"command": "sleep 0.3", "background": True, "notify_on_complete": True}
        await made.call("terminal", orjson.dumps(start).decode(), "1")
        for _ in range(100):
            content = (await made.call(name, "", "1")).content
            if "completion" in str(content):
                break
            await anyio.sleep(0.05)
        if name == "text":
            assert content.startswith('plain\n\n[Notifications: [{"type":"completion"')
        elif name == "json":
            assert orjson.loads(content)["notifications"][0]["type"] == "completion"
        else:
            assert content[0] == parts[0]
            assert "completion" in content[1]["text"]
    await made.aclose()


async def test_a_cancelled_call_kills_its_command(sandbox: Sandbox) -> None:
    made = ToolDispatcher(sandbox, ["terminal"])
    with anyio.move_on_after(0.5):
        await made.call("terminal", '{"command": "sleep 4323"}', "1")
    found = await sandbox.exec("pgrep -fx 'sleep 4323'", timeout_s=10, session=None)
    assert found.exit_code == 1


async def test_read_only_calls_may_run_beside_each_other(sandbox: Sandbox) -> None:
    for n in range(8):
        await sandbox.write(f"f{n}", f"text {n}\n".encode())
    made = ToolDispatcher(sandbox, list(NATIVE_TOOLS))
    contents: dict[int, str] = {}

    async def read(n: int) -> None:
        result = await made.call("read_file", f'{{"path": "f{n}"}}', str(n))
        contents[n] = orjson.loads(result.content)["content"]

    async with anyio.create_task_group() as group:
        for n in range(8):
            group.start_soon(read, n)
    assert contents == {n: f"1|text {n}" for n in range(8)}


async def test_the_todo_list_belongs_to_the_dispatcher() -> None:
    one, two = (ToolDispatcher(FakeSandbox(), ["todo"]) for _ in range(2))
    items = [
        {"id": "1", "content": "a", "status": "pending"},
        {"id": " ", "content": "", "status": "pending"},
        {"id": "1", "content": "b" * 5_000, "status": "Completed"},
    ]
    result = await one.call("todo", orjson.dumps({"todos": items}).decode(), "1")
    shown = orjson.loads(result.content)
    assert [item["id"] for item in shown["todos"]] == ["1", "?"]
    assert shown["todos"][0]["content"] == "b" * 4_000 + "… [truncated]"
    assert shown["todos"][1]["content"] == "(no description)"
    assert shown["summary"] == {
        "total": 2, "pending": 1, "in_progress": 0, "completed": 1, "cancelled": 0,
    }  # fmt: skip
    assert orjson.loads((await two.call("todo", "", "1")).content)["todos"] == []


async def test_todos_are_merged_by_id() -> None:
    made = ToolDispatcher(FakeSandbox(), ["todo"])
    await made.call("todo", '{"todos": [{"id": "1", "content": "a", "status": "pending"}]}', "1")
    update = '{"merge": true, "todos": [{"id": "1", "status": "completed"}, {"id": "2"}]}'
    todos = orjson.loads((await made.call("todo", update, "2")).content)["todos"]
    assert todos == [
        {"id": "1", "content": "a", "status": "completed"},
        {"id": "2", "content": "(no description)", "status": "pending"},
    ]
