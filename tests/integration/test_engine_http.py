"""The engine against a real HTTP server that does everything wrong: agent, retries, scores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import ModelUnauthorized
from hermes_rl.rollout import RolloutResult
from hermes_rl.tasks import Deadlines
from hermes_rl.testing.fake_sandbox import FakeBackend
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.leaks import leak_census
from hermes_rl.testing.loop_monitor import run_without_long_callbacks
from hermes_rl.testing.model_server import (
    Answer,
    ModelServer,
    Script,
    always,
    answer_in_turn,
    call_tool,
    completion,
    hang,
    refuse,
    reset,
    say,
    send,
    serve_model,
)
from hermes_rl.types import StopReason

LIST_FILES = call_tool("terminal", {"command": "ls"})


def engine_of(server: ModelServer, backend: FakeBackend | None = None, **env: Any) -> RolloutEngine:
    config = ServerConfig(base_url=server.base_url, model_name="m")
    return RolloutEngine(
        EnvConfig(rollout_retries=0, **env), [config], backend=backend or FakeBackend()
    )


async def rollout_with(
    script: Script | Sequence[Answer], task: FakeTask | None = None, **env: Any
) -> tuple[RolloutResult, ModelServer]:
    script = script if callable(script) else answer_in_turn([*script, say("done")])
    async with serve_model(script) as server, engine_of(server, **env) as engine:
        return await engine.rollout(task or FakeTask()), server


def tool_answers(result: RolloutResult) -> list[dict[str, Any]]:
    assert result.agent is not None
    return [orjson.loads(m["content"]) for m in result.agent.messages if m["role"] == "tool"]


async def test_arguments_that_are_no_json_are_answered_and_never_sent_back_raw() -> None:
    result, server = await rollout_with([call_tool("terminal", '{"command": "ls'), LIST_FILES])
    assert result.status == "finished"
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.FINISHED
    first, second = tool_answers(result)
    assert first["error"]
    assert second["exit_code"] == 0
    # A server refuses malformed arguments in the history; our log keeps what the model wrote.
    for message in server.requests[1].messages:
        for tool_call in message.get("tool_calls") or ():
            orjson.loads(tool_call["function"]["arguments"])
    assert '{"command": "ls' in str(result.agent.messages)
    assert "forks" not in result.agent.counters


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (call_tool("termnal", {"command": "ls"}), "Did you mean 'terminal'"),
        (call_tool("terminal", {"command": ["ls"]}), "command"),
        (call_tool("terminal", {}), "command"),
        (call_tool("terminal", "[]"), "object"),
    ],
    ids=["unknown tool", "wrong type", "missing argument", "no object"],
)
async def test_wrong_calls_are_precise_errors_that_the_model_can_act_on(
    answer: Answer, says: str
) -> None:
    result, _ = await rollout_with([answer, LIST_FILES])
    wrong, right = tool_answers(result)
    assert says in wrong["error"]
    assert right["exit_code"] == 0
    assert result.agent is not None
    assert len(result.agent.tool_errors) == 1
    assert result.status == "finished"


async def test_malformed_calls_in_a_row_end_the_rollout() -> None:
    result, server = await rollout_with(always(call_tool("terminal", "{")), max_invalid_calls=3)
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.INVALID_CALLS
    assert len(server.requests) == 3
    assert result.status == "finished"


async def test_a_megabyte_of_arguments_reaches_the_tool_without_blocking_the_loop() -> None:
    content = "x" * 1_000_000
    backend = FakeBackend()
    write = call_tool("write_file", {"path": "/root/big", "content": content})
    script = answer_in_turn([say("warmed up"), *[write, say("done")] * 3])
    async with serve_model(script) as server, engine_of(server, backend) as engine:
        await engine.rollout(FakeTask(id="warm-up"))
        result = await run_without_long_callbacks(lambda: engine.rollout(FakeTask()))
    assert backend.created[-1].files["/root/big"] == content.encode()
    assert result.status == "finished"


@pytest.mark.parametrize(
    "trouble",
    [
        refuse(500),
        reset(),
        send(b"<html>bad gateway</html>", status=502, content_type="text/html"),
        completion({"content": "x"}, choices=[]),
    ],
    ids=["500", "reset", "html 502", "empty choices"],
)
async def test_passing_trouble_is_retried_within_the_call(trouble: Answer) -> None:
    result, server = await rollout_with([trouble, LIST_FILES])
    assert result.status == "finished"
    assert result.agent is not None
    assert result.agent.turns_used == 2
    assert result.agent.usage.requests == len(server.requests) == 3
    assert result.agent.timings.waiting_s > 0


async def test_retry_after_is_honoured_and_does_not_use_up_the_agents_time() -> None:
    task = FakeTask(deadlines=Deadlines(agent_s=0.6))
    started_s = time.monotonic()
    result, _ = await rollout_with([refuse(429, retry_after=1), LIST_FILES], task)
    assert time.monotonic() - started_s >= 1
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.FINISHED
    assert result.agent.timings.waiting_s >= 1


async def test_a_context_overflow_ends_the_rollout_and_is_scored() -> None:
    overflow = refuse(
        400,
        "This model's maximum context length is 4096 tokens. However, your messages resulted in "
        "5000 tokens.",
        code="context_length_exceeded",
    )
    result, _ = await rollout_with([LIST_FILES, overflow])
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.CONTEXT_LENGTH
    assert (result.status, result.score) == ("finished", 1.0)


async def test_a_server_that_hangs_is_cut_off_at_the_agents_deadline() -> None:
    task = FakeTask(deadlines=Deadlines(agent_s=0.3))
    result, _ = await rollout_with([LIST_FILES, hang()], task)
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.WALL_CLOCK
    assert result.agent.turns_used == 1
    assert result.status == "finished"


async def test_a_rejected_request_is_an_error_that_says_why() -> None:
    result, server = await rollout_with(always(refuse(400, "tools[0]: bad schema")))
    assert (result.status, result.score) == ("errored", 0.0)
    assert result.failure is not None
    assert result.failure.kind == "ModelRejected"
    assert "bad schema" in result.failure.message
    assert len(server.requests) == 1


async def test_a_wrong_key_stops_the_whole_run_at_once() -> None:
    backend = FakeBackend()

    async def run_all() -> None:
        async with (
            serve_model(always(refuse(401, "wrong key"))) as server,
            engine_of(server, backend) as engine,
            engine.run([FakeTask(id=f"t{i}") for i in range(50)], max_workers=4) as results,
        ):
            _ = [result async for result in results]

    async with leak_census():
        with pytest.raises(ModelUnauthorized):
            await run_all()
    assert len(backend.created) <= 4
    assert backend.alive == []
