"""The agent loop: what it says, runs, records, and when it stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest

from hermes_rl.agent import HermesAgentLoop
from hermes_rl.errors import (
    ConfigError,
    MissingExtra,
    ModelTransient,
    SandboxGone,
)
from hermes_rl.legacy.settings import is_installed_here
from hermes_rl.model.protocol import Sampling
from hermes_rl.model.scripted import ScriptedModel, Turn, call, replay, say
from hermes_rl.testing.fake_tools import FakeTools
from hermes_rl.types import (
    AgentResult,
    Completion,
    InvalidCall,
    JSONObject,
    Message,
    StopReason,
    Timings,
    TokenSequence,
    ToolCall,
    ToolResult,
    Usage,
)
from hermes_rl.work_deadline import waiting


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def echo_tools(**more: Any) -> FakeTools:
    return FakeTools({"echo": lambda arguments: orjson.dumps(arguments).decode(), **more})


def loop_over(turns: Sequence[Turn], tools: FakeTools | None = None, **options: Any) -> Any:
    tools = tools or echo_tools()
    return HermesAgentLoop(
        ScriptedModel(replay(turns)), tools.schemas, tools.names, tools=tools, **options
    )


async def run(loop: HermesAgentLoop) -> AgentResult:
    return await loop.run([{"role": "user", "content": "go"}])


def calls_of(*calls: tuple[str, str]) -> Turn:
    """One turn with several calls, as (name, arguments)."""
    made = tuple(ToolCall(f"id{i}", name, arguments) for i, (name, arguments) in enumerate(calls))
    message = {"role": "assistant", "content": None, "tool_calls": [c.to_openai() for c in made]}
    return Completion(message=message, tool_calls=made, finish_reason="tool_calls")


def malformed(*invalid: InvalidCall, text: str = "<tool_call>{") -> Turn:
    return Completion(message={"role": "assistant", "content": text}, invalid_calls=invalid)


NAMED = InvalidCall("arguments are not valid JSON", '{"a": ', name="echo", code="json")
NAMELESS = InvalidCall("the call has no name", "<tool_call>{", code="name")


def assert_every_call_is_answered(messages: Sequence[Message]) -> None:
    asked = [c["id"] for m in messages for c in m.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    assert asked == answered


async def test_runs_calls_and_finishes_when_the_model_only_speaks() -> None:
    tools = echo_tools()
    messages = [{"role": "user", "content": "go"}]
    result = await loop_over([call("echo", {"x": 1})], tools).run(messages)
    assert result.messages is messages
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[2]["content"] == '{"x":1}'
    assert result.stop_reason is StopReason.FINISHED
    assert result.finished_naturally
    assert result.turns_used == 2
    assert result.reasoning_per_turn == [None, None]
    assert result.tool_errors == []
    assert result.counters == {"tool_calls": 1}
    assert tools.turns == 1
    assert result.managed_state is None
    assert_every_call_is_answered(messages)


# Limits -----------------------------------------------------------------------------------------


async def test_the_calls_of_the_last_turn_are_run() -> None:
    tools = echo_tools()
    result = await run(loop_over([call("echo", {})] * 5, tools, max_turns=2))
    assert result.stop_reason is StopReason.MAX_TURNS
    assert not result.finished_naturally
    assert (result.turns_used, len(tools.calls)) == (2, 2)


async def test_limits_are_checked_in_the_documented_order() -> None:
    """Turns, wall, tokens, cost: with all four reached at once each hides those after it."""
    limits = {"max_turns": 1, "deadline_s": 10.0, "max_token_length": 5, "max_cost_usd": 1.0}
    seen = []
    for lifted in [[], ["max_turns"], ["max_turns", "deadline_s"], [*limits][:3], [*limits]]:
        clock = FakeClock()

        def spend(_: JSONObject, clock: FakeClock = clock) -> str:
            clock.now_s += 10.0
            return "{}"

        turn = replace(call("spend", {}), usage=Usage(3, 2, cost_usd=1.0))
        options = {name: value for name, value in limits.items() if name not in lifted}
        loop = loop_over([turn], FakeTools({"spend": spend}), clock=clock, **options)
        seen.append((await run(loop)).stop_reason)
    assert seen == [
        StopReason.MAX_TURNS,
        StopReason.WALL_CLOCK,
        StopReason.TOKEN_LIMIT,
        StopReason.COST_LIMIT,
        StopReason.FINISHED,
    ]


async def test_the_token_limit_is_about_the_sequence_not_the_sum_of_calls() -> None:
    turn = replace(call("echo", {}), usage=Usage(60, 10))
    result = await run(loop_over([turn] * 3, max_token_length=100))
    assert result.stop_reason is StopReason.FINISHED
    assert result.usage.prompt_tokens == 180


async def test_the_deadline_cuts_off_a_tool_call_and_keeps_what_was_done() -> None:
    killed = []

    async def hang(_: JSONObject) -> str:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            killed.append(True)
            raise
        return ""

    tools = echo_tools(hang=hang)
    turns = [call("echo", {}), calls_of(("echo", "{}"), ("hang", "{}"), ("echo", "{}"))]
    result = await run(loop_over(turns, tools, deadline_s=0.05))
    assert killed == [True]
    assert result.stop_reason is StopReason.WALL_CLOCK
    assert result.turns_used == 2
    assert_every_call_is_answered(result.messages)
    assert "cut off" in result.messages[-2]["content"]
    assert "not run" in result.messages[-1]["content"]
    assert [error.tool_name for error in result.tool_errors] == ["hang"]
    assert result.counters["interrupted_calls"] == 2
    assert result.timings.tool_s >= 0.04


async def test_the_deadline_cuts_off_a_model_call() -> None:
    class Hangs:
        sequences: Sequence[TokenSequence] = ()

        async def complete(self, messages: Sequence[Message]) -> Completion:
            await anyio.sleep_forever()
            raise AssertionError

    loop = HermesAgentLoop(Hangs(), [], [], deadline_s=0.02)
    result = await run(loop)
    assert result.stop_reason is StopReason.WALL_CLOCK
    assert result.turns_used == 0
    assert result.timings.model_s >= 0.01


@pytest.mark.parametrize("stop", [StopReason.CONTEXT_LENGTH, StopReason.TOKEN_LIMIT])
async def test_a_stop_of_the_session_without_a_turn_ends_the_rollout(stop: StopReason) -> None:
    result = await run(loop_over([call("echo", {}), Completion(message=None, stop=stop)]))
    assert result.stop_reason is stop
    assert result.turns_used == 1


async def test_calls_of_a_turn_that_used_up_the_tokens_still_run_but_not_filtered_ones() -> None:
    tools = echo_tools()
    turn = replace(call("echo", {}), stop=StopReason.TOKEN_LIMIT)
    assert (await run(loop_over([turn], tools))).stop_reason is StopReason.TOKEN_LIMIT
    assert len(tools.calls) == 1
    filtered = replace(turn, invalid_calls=(NAMED,), stop=StopReason.CONTENT_FILTER)
    result = await run(loop_over([filtered], tools))
    assert result.stop_reason is StopReason.CONTENT_FILTER
    assert len(tools.calls) == 1
    assert result.tool_errors == []
    assert_every_call_is_answered(result.messages)


async def test_a_turn_cut_by_length_is_no_natural_finish() -> None:
    result = await run(loop_over([replace(say("I will now"), finish_reason="length")]))
    assert result.stop_reason is StopReason.TOKEN_LIMIT
    assert result.counters["truncated_turns"] == 1


# Malformed calls --------------------------------------------------------------------------------


async def test_a_malformed_call_with_a_name_is_answered_as_a_tool_call() -> None:
    result = await run(loop_over([malformed(NAMED)]))
    assistant, answer = result.messages[1:3]
    assert assistant["tool_calls"] == [
        {
            "id": "call_invalid_1_0",
            "type": "function",
            "function": {"name": "echo", "arguments": '{"a": '},
        }
    ]
    assert answer["tool_call_id"] == "call_invalid_1_0"
    assert "arguments are not valid JSON" in answer["content"]
    assert result.counters["invalid_json"] == 1
    assert [error.error for error in result.tool_errors] == [
        "Malformed tool call: arguments are not valid JSON"
    ]
    assert result.stop_reason is StopReason.FINISHED


async def test_malformed_calls_without_a_name_are_answered_by_one_user_message() -> None:
    result = await run(loop_over([malformed(NAMELESS, NAMELESS)]))
    assert [m["role"] for m in result.messages] == ["user", "assistant", "user", "assistant"]
    assert result.messages[2]["content"].count("the call has no name") == 2
    assert result.counters["invalid_name"] == 2


async def test_a_mixed_turn_runs_the_valid_calls_and_answers_the_others_after_them() -> None:
    tools = echo_tools()
    turn = replace(call("echo", {"ok": True}), invalid_calls=(NAMED, NAMELESS))
    result = await run(loop_over([turn], tools))
    assert [m["role"] for m in result.messages[1:]] == [
        "assistant",
        "tool",
        "tool",
        "user",
        "assistant",
    ]
    assert len(tools.calls) == 1
    assert len(result.messages[1]["tool_calls"]) == 2
    assert_every_call_is_answered(result.messages)


async def test_the_message_of_the_model_is_never_changed_in_place() -> None:
    turn = replace(call("echo", {}), invalid_calls=(NAMED,))
    assert turn.message is not None
    await run(loop_over([turn]))
    assert len(turn.message["tool_calls"]) == 1


async def test_malformed_turns_in_a_row_end_the_rollout_after_they_were_answered() -> None:
    result = await run(loop_over([malformed(NAMED)] * 9, max_invalid_calls=3))
    assert result.stop_reason is StopReason.INVALID_CALLS
    assert result.turns_used == 3
    assert_every_call_is_answered(result.messages)


@pytest.mark.parametrize("bad", [malformed(NAMELESS), call("echo", '{"a": '), call("echo", "[]")])
async def test_every_kind_of_malformed_turn_counts(bad: Turn) -> None:
    tools = FakeTools({"echo": lambda arguments: ToolResult("no", "arguments must be an object")})
    result = await run(loop_over([bad] * 9, tools, max_invalid_calls=2))
    assert (result.stop_reason, result.turns_used) == (StopReason.INVALID_CALLS, 2)


async def test_a_well_formed_call_starts_the_count_again() -> None:
    turns = [malformed(NAMED), malformed(NAMED), call("echo", {})] * 2
    assert (await run(loop_over(turns))).stop_reason is StopReason.FINISHED


async def test_an_unknown_tool_is_an_error_for_the_model_that_names_the_nearest() -> None:
    tools = echo_tools()
    result = await run(loop_over([call("ehco", {})], tools))
    assert "Did you mean 'echo'?" in result.messages[2]["content"]
    assert tools.calls == []
    assert result.counters["unknown_tools"] == 1
    assert result.tool_errors[0].tool_name == "ehco"


async def test_tool_errors_are_kept_cut_to_a_thousand_characters() -> None:
    tools = FakeTools({"fail": lambda arguments: ToolResult("r" * 5000, "it failed")})
    result = await run(loop_over([call("fail", {"a": "x" * 5000})], tools))
    (error,) = result.tool_errors
    assert (error.turn, error.tool_name, error.error) == (1, "fail", "it failed")
    assert len(error.arguments) == len(error.tool_result) == 1000


# Failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SandboxGone("out of memory", by_agent=True), StopReason.SANDBOX_BROKEN),
        (SandboxGone("daemon restarted"), StopReason.SANDBOX_LOST),
        (KeyError("bug"), StopReason.TOOL_FAULT),
    ],
)
async def test_failures_of_tools_stop_the_loop_with_their_kind(
    error: Exception, reason: StopReason
) -> None:
    def fail(_: JSONObject) -> str:
        raise error

    loop = loop_over([calls_of(("fail", "{}"), ("echo", "{}"))], echo_tools(fail=fail))
    result = await run(loop)
    assert result.stop_reason is reason
    assert result.error == str(loop.failure)
    assert loop.failure is error or loop.failure.__cause__ is error
    assert_every_call_is_answered(result.messages)


async def test_a_model_failure_keeps_the_conversation_so_far() -> None:
    error = ModelTransient("503 from http://x", status=503)
    turns = [call("echo", {})]

    def script(messages: Sequence[Message]) -> Turn:
        if len(messages) > 2:
            raise error
        return turns[0]

    tools = echo_tools()
    loop = HermesAgentLoop(ScriptedModel(script), tools.schemas, tools.names, tools=tools)
    result = await run(loop)
    assert result.stop_reason is StopReason.MODEL_ERROR
    assert loop.failure is error
    assert result.error == "503 from http://x"
    assert len(result.messages) == 3


async def test_a_model_object_that_breaks_is_no_cancellation() -> None:
    def broken(*_: object) -> Turn:
        raise KeyError("choices")

    loop = HermesAgentLoop(ScriptedModel(broken), (), ())
    with pytest.raises(KeyError):
        await run(loop)
    assert loop.result is not None
    assert loop.result.stop_reason is StopReason.MODEL_ERROR
    assert f"KeyError: 'choices' ({__file__}" in (loop.result.error or "")


async def test_a_session_that_returns_no_completion_is_named() -> None:
    loop = HermesAgentLoop(ScriptedModel(lambda *_: {"role": "assistant"}), (), ())  # type: ignore[arg-type, return-value]
    result = await run(loop)
    assert result.stop_reason is StopReason.MODEL_ERROR
    assert result.error == "The model session returned a dict, no Completion."


async def test_cancelling_raises_and_leaves_a_complete_partial_result() -> None:
    async def hang(_: JSONObject) -> str:
        await anyio.sleep_forever()
        return ""

    loop = loop_over([call("hang", {})], FakeTools({"hang": hang}))
    with anyio.move_on_after(0.02) as scope:
        await run(loop)
    assert scope.cancelled_caught
    assert loop.result is not None
    assert loop.result.stop_reason is StopReason.CANCELLED
    assert_every_call_is_answered(loop.result.messages)


# Parallel calls ---------------------------------------------------------------------------------


async def test_calls_run_one_after_another_by_default() -> None:
    at_once, most = 0, 0

    async def count(_: JSONObject) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await anyio.lowlevel.checkpoint()
        at_once -= 1
        return ""

    tools = FakeTools({"count": count}, read_only={"count"})
    await run(loop_over([calls_of(*[("count", "{}")] * 4)], tools))
    assert most == 1


async def test_neighbouring_read_only_calls_run_together_and_are_answered_in_order() -> None:
    running: list[str] = []
    seen: list[tuple[str, int]] = []

    async def tool(arguments: JSONObject) -> str:
        running.append(arguments["n"])
        for _ in range(arguments["steps"]):
            await anyio.lowlevel.checkpoint()
        seen.append((arguments["n"], len(running)))
        running.remove(arguments["n"])
        return str(arguments["n"])

    tools = FakeTools({"read": tool, "write": tool}, read_only={"read"})
    calls = [("read", "a", 3), ("read", "b", 1), ("write", "c", 1), ("read", "d", 1)]
    turn = calls_of(
        *[(name, orjson.dumps({"n": n, "steps": steps}).decode()) for name, n, steps in calls]
    )
    result = await run(loop_over([turn], tools, parallel_tool_calls=True))
    assert seen == [("b", 2), ("a", 1), ("c", 1), ("d", 1)]
    assert [m["content"] for m in result.messages if m["role"] == "tool"] == ["a", "b", "c", "d"]


async def test_a_failure_among_parallel_calls_ends_its_neighbours() -> None:
    gone = SandboxGone("removed")

    async def wait(_: JSONObject) -> str:
        await anyio.sleep_forever()
        return ""

    def fail(_: JSONObject) -> str:
        raise gone

    tools = FakeTools({"wait": wait, "fail": fail}, read_only={"wait", "fail"})
    loop = loop_over([calls_of(("wait", "{}"), ("fail", "{}"))], tools, parallel_tool_calls=True)
    assert (await run(loop)).stop_reason is StopReason.SANDBOX_LOST
    assert loop.failure is gone


# Sessions, timings, compaction ------------------------------------------------------------------


class RecordingModel:
    """A ChatModel that remembers how its sessions were opened and what they were shown."""

    name = "recording"
    context_tokens: int | None = None

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._script = replay(turns)
        self.opened: list[tuple[Sequence[JSONObject], Sampling, int | None]] = []
        self.open_now = 0
        self.shown: list[list[Message]] = []
        self.sequences: list[TokenSequence] = []

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[RecordingModel]:
        self.opened.append((tools, sampling, seed))
        self.open_now += 1
        try:
            yield self
        finally:
            self.open_now -= 1

    async def complete(self, messages: Sequence[Message]) -> Completion:
        await anyio.lowlevel.checkpoint()
        self.shown.append(list(messages))
        return self._script(messages)


class ModelOnly:
    """The session-opening half of a model alone, so that nothing mistakes it for a session."""

    def __init__(self, model: RecordingModel) -> None:
        self.name, self.context_tokens = model.name, model.context_tokens
        self.session = model.session


async def test_a_chat_model_gets_one_session_per_run_with_schemas_and_sampling() -> None:
    model, tools = RecordingModel([]), echo_tools()
    loop = HermesAgentLoop(
        ModelOnly(model),
        tools.schemas,
        tools.names,
        30,
        "task-1",
        0.25,
        77,
        {"provider": "x"},
        tools=tools,
        max_token_length=9000,
        seed=5,
    )
    await run(loop)
    await run(loop)
    assert model.open_now == 0
    assert len(model.opened) == 2
    schemas, sampling, seed = model.opened[0]
    assert list(schemas) == list(tools.schemas)
    assert sampling == Sampling(
        temperature=0.25,
        max_tokens_per_turn=77,
        max_token_length=9000,
        extra_body={"provider": "x"},
    )
    assert seed == 5


async def test_token_sequences_become_the_managed_state_also_when_the_run_fails() -> None:
    model = RecordingModel([Completion(message=None)])
    model.sequences = [TokenSequence([1, 2], [-100, 2], [1.0, -0.5], {"forks": 0})]
    result = await run(HermesAgentLoop(ModelOnly(model), [], []))
    assert result.stop_reason is StopReason.MODEL_ERROR
    assert result.managed_state == {
        "nodes": [
            {
                "tokens": [1, 2],
                "masked_tokens": [-100, 2],
                "logprobs": [1.0, -0.5],
                "metadata": {"forks": 0},
            }
        ]
    }


async def test_usage_adds_up_and_waiting_is_not_model_time() -> None:
    clock = FakeClock()

    def script(messages: Sequence[Message]) -> Turn:
        clock.now_s += 5.0
        done = len(messages) > 1
        turn = say("ok") if done else call("slow", {})
        return replace(
            turn,
            usage=Usage(10, 2, requests=1, cost_usd=0.5),
            timings=Timings(waiting_s=4.0),
            reasoning=None if done else "think",
        )

    def slow(_: JSONObject) -> str:
        clock.now_s += 7.0
        return ""

    tools = FakeTools({"slow": slow})
    loop = HermesAgentLoop(
        ScriptedModel(script), tools.schemas, tools.names, tools=tools, clock=clock
    )
    result = await run(loop)
    assert result.timings == Timings(model_s=2.0, tool_s=7.0, waiting_s=8.0)
    assert result.usage == Usage(20, 4, requests=2, cost_usd=1.0)
    assert result.reasoning_per_turn == ["think", None]


class WaitingSession:
    """A session that waits, says so, and then asks for a tool call; forever."""

    sequences: Sequence[TokenSequence] = ()

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s

    async def complete(self, messages: Sequence[Message]) -> Completion:
        with waiting():
            await anyio.sleep(self.wait_s)
        return call("echo", {}) if len(messages) < 8 else say("done")


async def test_waiting_for_the_model_does_not_count_against_the_deadline() -> None:
    tools = echo_tools()
    loop = HermesAgentLoop(
        WaitingSession(0.02), [], tools.names, tools=tools, deadline_s=0.05, waiting_allowance_s=60
    )
    result = await run(loop)
    assert result.stop_reason is StopReason.FINISHED
    assert result.timings.waiting_s >= 0.08
    assert result.timings.model_s < 0.05


async def test_a_run_kept_waiting_beyond_the_allowance_is_no_failure_of_the_agent() -> None:
    tools = echo_tools()
    loop = HermesAgentLoop(
        WaitingSession(60), [], tools.names, tools=tools, deadline_s=0.02, waiting_allowance_s=0.02
    )
    result = await run(loop)
    assert result.stop_reason is StopReason.MODEL_ERROR
    assert loop.failure is not None
    assert loop.failure.retryable
    assert "kept this rollout waiting" in str(loop.failure)


async def test_compaction_changes_what_the_model_sees_but_not_what_is_kept() -> None:
    model, tools = RecordingModel([call("echo", {})] * 4), echo_tools()

    def keep_last_two(messages: list[Message]) -> list[Message]:
        return messages if len(messages) < 6 else [messages[0], *messages[-2:]]

    loop = HermesAgentLoop(
        ModelOnly(model), tools.schemas, tools.names, tools=tools, compact=keep_last_two
    )
    result = await run(loop)
    # The replayed script counts the assistant messages that it sees, so a compacted history makes
    # it speak its turns again: the rollout ends by its turn limit.
    assert result.stop_reason is StopReason.MAX_TURNS
    assert max(len(shown) for shown in model.shown) <= 5
    assert len(result.messages) == 1 + 2 * 30
    assert result.counters["compactions"] == (30 - 3) // 2 + 1
    assert_every_call_is_answered(result.messages)


async def test_a_server_that_cannot_be_talked_to_is_refused() -> None:
    with pytest.raises(ConfigError, match="chat_completion"):
        HermesAgentLoop(object(), [], [])  # type: ignore[arg-type]


@pytest.mark.skipif(is_installed_here(), reason="hermes-agent is installed here")
async def test_tools_without_a_dispatcher_need_the_legacy_extra() -> None:
    with pytest.raises(MissingExtra, match=r"hermes_rl\[hermes\]"):
        HermesAgentLoop(ScriptedModel(replay([])), [], ["terminal"])


async def test_limits_below_one_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_turns"):
        HermesAgentLoop(ScriptedModel(replay([])), [], [], max_turns=0)


async def test_calls_beyond_the_limit_of_a_turn_are_refused_seen_and_counted() -> None:
    tools = echo_tools()
    many = calls_of(*[("echo", f'{{"n":{number}}}') for number in range(40)])
    for limit, options in ((32, {}), (3, {"max_calls_per_turn": 3})):
        result = await run(loop_over([many, say("done")], tools, **options))
        answers = [m["content"] for m in result.messages if m["role"] == "tool"]
        assert answers[:limit] == [f'{{"n":{number}}}' for number in range(limit)]
        assert len(answers) == 40
        assert all(f"at most {limit} tool calls" in answer for answer in answers[limit:])
        assert result.counters == {"tool_calls": 40, "surplus_calls": 40 - limit}
        assert len(result.tool_errors) == 40 - limit
        assert result.stop_reason is StopReason.FINISHED
        assert_every_call_is_answered(result.messages)


async def test_a_limit_of_calls_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_calls_per_turn"):
        loop_over([], max_calls_per_turn=0)
