"""The functions of the old framework."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable

import orjson
import pytest

from hermes_rl.agent import HermesAgentLoop
from hermes_rl.errors import ConfigError
from hermes_rl.legacy import (
    _tool_executor,
    cleanup_all_environments,
    get_tool_definitions,
    handle_function_call,
    legacy_dispatcher,
)
from hermes_rl.model.scripted import ScriptedModel, call, replay
from tests.integration.hermes_world import PUBLIC, Services, titles


def test_a_call_returns_what_hermes_agent_returns() -> None:
    text = handle_function_call("web_search", {"query": "find me"}, task_id="a")
    assert isinstance(text, str)
    assert titles([text]) == {"me": 1}


def test_arguments_are_not_changed() -> None:
    arguments = {"query": "find me", "limit": "3"}
    handle_function_call("web_search", arguments)
    assert arguments == {"query": "find me", "limit": "3"}


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("terminal", {"command": "touch /tmp/on-the-host"}, "would run on the host"),
        ("execute_code", {"code": "1"}, "refused"),
        ("browser_navigate", {"url": "file:///etc/passwd"}, "http"),
        ("vision_analyze", {"image_url": "/etc/passwd", "question": "?"}, "file of the host"),
        ("nope", {}, "Unknown tool"),
    ],
)
def test_refusals_and_mistakes_are_results(tool: str, arguments: dict, said: str) -> None:
    assert said in json.loads(handle_function_call(tool, arguments))["error"]


async def test_inside_a_loop_the_call_runs_in_a_thread() -> None:
    from tools.registry import registry

    def handler(args: dict, **_: object) -> str:
        async def inner() -> str:
            return threading.current_thread().name

        return json.dumps({"thread": asyncio.run(inner())})

    schema = {"name": "mine", "description": "", "parameters": {"type": "object"}}
    registry.register(name="mine", toolset="mine", schema=schema, handler=handler)
    assert json.loads(handle_function_call("mine", {}))["thread"].startswith("hermes-tool")
    loop = asyncio.get_running_loop()
    text = await loop.run_in_executor(_tool_executor, handle_function_call, "mine", {})
    assert json.loads(text)["thread"].startswith("hermes-tool")


def test_a_tool_that_exits_is_a_result() -> None:
    from tools.registry import registry

    def handler(args: dict, **_: object) -> str:
        raise SystemExit(3)

    schema = {"name": "quits", "description": "", "parameters": {"type": "object"}}
    registry.register(name="quits", toolset="mine", schema=schema, handler=handler)
    assert "SystemExit" in json.loads(handle_function_call("quits", {}))["error"]


def test_definitions_are_of_native_tools_and_of_hermes_agent() -> None:
    names = [schema["function"]["name"] for schema in get_tool_definitions(["terminal", "web"])]
    assert names == ["process", "terminal", "web_extract", "web_search"]
    everything = {schema["function"]["name"] for schema in get_tool_definitions()}
    assert {"patch", "web_search"} <= everything
    assert "execute_code" not in everything
    with pytest.raises(ConfigError, match="use terminal"):
        get_tool_definitions(["code_execution"])


async def test_a_loop_without_tools_uses_hermes_agent_in_this_process(world: Services) -> None:
    schemas = get_tool_definitions(["web"])
    turns = [call("web_search", {"query": "by the loop"}), call("web_search", {"quer": "x"})]
    loop = HermesAgentLoop(ScriptedModel(replay(turns)), schemas, ["web_search"], task_id="one")
    result = await loop.run([{"role": "user", "content": "Search."}])
    first, second = (m["content"] for m in result.messages if m["role"] == "tool")
    assert titles([first]) == {"the loop": 1}
    assert "Did you mean 'query'" in second
    assert world.queries == ["by the loop"]


async def test_dispatchers_have_browsers_of_their_own() -> None:
    one, two = (legacy_dispatcher(["browser_navigate", "browser_snapshot"]) for _ in range(2))
    assert [schema["function"]["name"] for schema in one.schemas] == [
        "browser_navigate",
        "browser_snapshot",
    ]
    for number, tools in enumerate((one, two)):
        where = orjson.dumps({"url": f"{PUBLIC}/{number}"}).decode()
        await tools.call("browser_navigate", where, "1")
    for number, tools in enumerate((one, two)):
        shown = await tools.call("browser_snapshot", "{}", "2")
        assert f"{PUBLIC}/{number}" in shown.content
    await one.aclose()
    assert "nothing" in (await one.call("browser_snapshot", "{}", "3")).content
    await one.aclose()
    await two.aclose()
    cleanup_all_environments()


def test_a_loop_cannot_be_given_tools_that_need_a_sandbox() -> None:
    with pytest.raises(ConfigError, match=r"tools=ToolDispatcher\(sandbox, names\)"):
        legacy_dispatcher(["terminal", "web_search"])


def test_the_home_is_private_and_the_old_one_is_read(run_script: Callable[[str], str]) -> None:
    assert "hermes-rl-" in os.environ["HERMES_HOME"]
    code = (
        "import os, sys, tempfile\n"
        "home = tempfile.mkdtemp()\n"
        "open(home + '/config.yaml', 'w').write('web: {search_backend: ddgs}')\n"
        "os.environ['HERMES_HOME'] = home\n"
        "from hermes_rl.legacy import get_tool_definitions\n"
        "assert 'model_tools' not in sys.modules\n"
        "get_tool_definitions()\n"
        "private = os.environ['HERMES_HOME']\n"
        "print(private != home, 'ddgs' in open(private + '/config.yaml').read())\n"
        "print(os.listdir(home), private)\n"
    )
    kept, private = run_script(code).splitlines()
    assert kept == "True True"
    listed, _, directory = private.rpartition(" ")
    assert listed == "['config.yaml']"
    assert not os.path.exists(directory)
