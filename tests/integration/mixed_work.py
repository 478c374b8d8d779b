"""Twenty tool calls of every kind for one sandbox, and what each must return."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from hermes_rl.context import ToolContext
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.scripted import ScriptedModel, Turn, call, say
from hermes_rl.rollout import RolloutResult
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.loop_monitor import loop_monitor
from hermes_rl.types import AgentResult, Message

Check = Callable[[Mapping[str, Any]], bool]


def says(text: str) -> Check:
    return lambda answer: answer["exit_code"] == 0 and answer["output"].strip() == text


def exits(code: int) -> Check:
    return lambda answer: answer["exit_code"] == code


def has_no_error(answer: Mapping[str, Any]) -> bool:
    return not answer.get("error")


def work_in(box: str) -> list[tuple[str, dict[str, Any], Check]]:
    """Return the calls for the sandbox called ``box``: tool, arguments, check of the result."""

    def terminal(command: str, check: Check, **more: Any) -> tuple[str, dict[str, Any], Check]:
        return "terminal", {"command": command, **more}, check

    return [
        terminal(f"mkdir -p ~/work && cd ~/work && export BOX={box}", exits(0)),
        terminal('printf %s "$BOX" > name; basename "$PWD"', says("work")),
        ("write_file", {"path": "notes.txt", "content": "alpha\nbeta\n"}, has_no_error),
        ("read_file", {"path": "notes.txt"}, lambda answer: "beta" in answer["content"]),
        (
            "patch",
            {"path": "notes.txt", "old_string": "beta", "new_string": "gamma"},
            has_no_error,
        ),
        ("search_files", {"pattern": "gam+a", "path": "."}, lambda a: "notes.txt" in str(a)),
        terminal("exec sleep 600", lambda a: bool(a["session_id"]), background=True),
        ("process", {"action": "list"}, lambda answer: "running" in str(answer)),
        terminal("cat name", says(box)),
        terminal("head -c 300000 /dev/urandom | base64 -w0 > big; wc -c < big", says("400000")),
        terminal("pwd", says("/tmp"), workdir="/tmp"),
        ("todo", {"todos": [{"id": "1", "content": "x", "status": "pending"}]}, has_no_error),
        terminal('greet() { echo "hello $1"; }', exits(0)),
        terminal('greet "$BOX"', says(f"hello {box}")),
        terminal("exit 3", exits(3)),
        terminal("sleep 60", exits(124), timeout=1),
        terminal("seq 1000 | awk '{s += $1} END {print s}'", says("500500")),
        terminal("cat big | wc -c", says("400000")),
        terminal("ls", lambda a: {"big", "name", "notes.txt"} <= set(a["output"].split())),
        terminal("echo finished > done && echo $BOX", says(box)),
    ]


def _next_turn(messages: Sequence[Message]) -> Turn:
    calls = work_in(messages[0]["content"])
    spoken = sum(message["role"] == "assistant" for message in messages)
    return call(*calls[spoken][:2]) if spoken < len(calls) else say("done")


def mixed_model() -> ScriptedModel:
    """Return the model that does the work; the prompt is the sandbox's name."""
    return ScriptedModel(_next_turn, name="mixed")


async def _all_went_well(result: AgentResult, ctx: ToolContext) -> float:
    box = result.messages[0]["content"]
    answers = [orjson.loads(m["content"]) for m in result.messages if m["role"] == "tool"]
    wrong = [
        f"{tool} {arguments}: {answer}"
        for (tool, arguments, check), answer in zip(work_in(box), answers, strict=True)
        if not check(answer)
    ]
    assert not wrong, wrong
    left = await ctx.terminal("cat ~/work/name ~/work/done")
    assert left["output"].strip() == f"{box}finished", left
    processes = await ctx.call_tool("process", {"action": "list"})
    assert '"running"' in processes, processes
    return 1.0


def mixed_task(box: str, sandbox: SandboxSpec) -> FakeTask:
    """Return the task; its reward is 1 only if every call returned what it must."""
    return FakeTask(id=box, prompt=box, reward=_all_went_well, sandbox=sandbox)


async def run_boxes(engine: RolloutEngine, count: int, spec: SandboxSpec) -> list[RolloutResult]:
    """Do the work in ``count`` sandboxes at once; fail on anything that is not as it must be."""
    todo = [mixed_task(f"box-{i}", spec) for i in range(count)]
    with loop_monitor(spikes=1):
        async with engine.run(todo, max_workers=count) as stream:
            results = [result async for result in stream]
    problems = [r.failure for r in results if r.status != "finished"]
    assert problems == [], problems[0]
    assert [r.score for r in results] == [1.0] * count
    assert [e for r in results if r.agent for e in r.agent.tool_errors] == []
    return results
