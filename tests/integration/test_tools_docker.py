"""The tools in containers: isolated, as another user, and in an image that has next to nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from hermes_rl.context import ToolContext
from hermes_rl.sandbox import open_backend
from hermes_rl.tools import NATIVE_TOOLS, ToolDispatcher, ToolSettings

from .docker_boxes import BARE_IMAGE, box, run_settings

pytestmark = pytest.mark.docker


def caller(tools: ToolDispatcher) -> Callable[..., Awaitable[dict[str, Any]]]:
    async def call(name: str, **arguments: Any) -> dict[str, Any]:
        result = await tools.call(name, orjson.dumps(arguments).decode(), "1")
        return orjson.loads(result.content)

    return call


async def test_a_container_is_the_only_boundary(docker_image: str, tmp_path: Path) -> None:
    async with open_backend("docker", run_settings(tmp_path)) as backend:
        sandbox = await backend.create(box())
        tools = ToolDispatcher(sandbox, list(NATIVE_TOOLS))
        call = caller(tools)
        assert (await call("write_file", path="/etc/motd", content="hi\n"))["bytes_written"] == 3
        edit = {"path": "/etc/motd", "old_string": "hi", "new_string": "ho"}
        assert (await call("patch", **edit))["success"] is True
        assert (await call("read_file", path="/etc/motd"))["content"] == "1|ho"
        assert (await call("terminal", command="rm -rf /opt; echo gone"))["output"] == "gone"
        server = "nohup python3 -m http.server 8123 >/dev/null 2>&1 &"
        assert (await call("terminal", command=server))["exit_code"] == 0
        found = await call("search_files", pattern=r"^root:\w", path="/etc", file_glob="passwd")
        assert found["matches"][0]["content"].startswith("root:x:0:0")
        ctx = ToolContext(sandbox, tools)
        fetch = (
            "for i in $(seq 50); do curl -fsS localhost:8123 >/dev/null && break; sleep 0.1; done"
        )
        assert (await ctx.terminal(f"{fetch}; curl -fsS localhost:8123"))["exit_code"] == 0
        await tools.aclose()


async def test_files_are_the_agents_and_its_rights_are_those_of_its_user(
    docker_image: str, tmp_path: Path
) -> None:
    async with open_backend("docker", run_settings(tmp_path)) as backend:
        sandbox = await backend.create(box(workdir="/tmp"))
        setup = "echo answer > /root/secret; chmod 600 /root/secret; install -d -o nobody /work"
        await sandbox.exec(setup, timeout_s=10)
        tools = ToolDispatcher(sandbox, list(NATIVE_TOOLS), settings=ToolSettings(user="nobody"))
        call = caller(tools)
        assert (await call("terminal", command="cd /work; id -un"))["output"] == "nobody"
        assert (await call("write_file", path="mine.txt", content="a\n"))["bytes_written"] == 2
        assert (await call("patch", path="mine.txt", old_string="a", new_string="b"))["success"]
        owner = await call("terminal", command="stat -c %U mine.txt; echo c >> mine.txt")
        assert (owner["output"], owner["exit_code"]) == ("nobody", 0)
        for name, arguments in (
            ("read_file", {"path": "/root/secret"}),
            ("write_file", {"path": "/root/secret", "content": "x"}),
            ("patch", {"path": "/root/secret", "old_string": "answer", "new_string": "x"}),
        ):
            assert "error" in await call(name, **arguments), name
        assert (await call("search_files", pattern="answer", path="/root"))["total_count"] == 0
        ctx = ToolContext(sandbox, tools)
        assert (await ctx.terminal("id -un; pwd"))["output"].split() == ["root", "/work"]
        assert (await ctx.read_file("/root/secret"))["content"] == "answer\n"


async def test_an_image_without_python_has_all_the_tools(docker_image: str, tmp_path: Path) -> None:
    async with open_backend("docker", run_settings(tmp_path)) as backend:
        sandbox = await backend.create(box(image=BARE_IMAGE, workdir="/tmp"))
        call = caller(ToolDispatcher(sandbox, list(NATIVE_TOOLS)))
        assert (await call("terminal", command="command -v python3 rg"))["output"] == ""
        await call("write_file", path="d/a.txt", content="one\ntwo\n")
        assert (await call("search_files", pattern="tw+o"))["total_count"] == 1
        assert (await call("search_files", pattern="*.txt", target="files"))["files"] == [
            "./d/a.txt"
        ]
        patch = "*** Update File: d/a.txt\n-one\n+1\n*** Move File: d/a.txt -> b.txt"
        assert (await call("patch", mode="patch", patch=patch))["success"] is True
        assert (await call("patch", mode="patch", patch="*** Delete File: b.txt"))[
            "success"
        ] is True
        await call("terminal", command="seq 1 1000000 > big")
        page = await call("read_file", path="big", offset=999_999, limit=1)
        assert page["content"] == "999999|999999"
