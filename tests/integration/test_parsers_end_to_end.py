"""From raw text to a file in a sandbox: a server that knows no tools, a parser, the agent loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.context import ToolContext
from hermes_rl.engine import RolloutEngine
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.model_server import answer_in_turn, say, serve_model
from hermes_rl.types import AgentResult, StopReason

COMMAND = """printf '%s' 'a "b" {c} </d>' > proof.txt"""
WRITTEN = 'a "b" {c} </d>'
JSON = COMMAND.replace('"', '\\"')
B, E, SEP = (f"<\uff5ctool\u2581{n}\uff5c>" for n in ("call\u2581begin", "call\u2581end", "sep"))
BEGIN, END = (f"<\uff5ctool\u2581calls\u2581{n}\uff5c>" for n in ("begin", "end"))
TURNS = {
    "hermes": f"""I write it.
<tool_call>
{{"name": "terminal", "arguments": {{"command": "{JSON}"}}}}
</tool_call>""",
    "qwen": f"""<think>
Easy.
</think>

<tool_call>
{{"name": "terminal", "arguments": {{"command": "{JSON}"}}}}
</tool_call><|im_end|>""",
    "mistral": f'I write it.[TOOL_CALLS]terminal[ARGS]{{"command": "{JSON}"}}</s>',
    "llama3_json": f'{{"name": "terminal", "parameters": {{"command": "{JSON}"}}}}<|eom_id|>',
    "qwen3_coder": f"""I write it.
<tool_call>
<function=terminal>
<parameter=command>
{COMMAND}
</parameter>
<parameter=timeout>
20
</parameter>
</function>
</tool_call>""",
    "deepseek_v3": f"""I write it.{BEGIN}{B}function{SEP}terminal
```json
{{"command": "{JSON}"}}
```{E}{END}""",
    "deepseek_v3_1": f'Easy.</think>{BEGIN}{B}terminal{SEP}{{"command": "{JSON}"}}{E}{END}',
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.terminal:0"
        f'<|tool_call_argument_begin|>{{"command": "{JSON}"}}<|tool_call_end|>'
        "<|tool_calls_section_end|>"
    ),
    "longcat": f"""<longcat_tool_call>terminal
<longcat_arg_key>command</longcat_arg_key>
<longcat_arg_value>{COMMAND}</longcat_arg_value>
</longcat_tool_call>""",
    "glm45": f"""<think>Easy.</think>
<tool_call>terminal
<arg_key>command</arg_key>
<arg_value>{COMMAND}</arg_value>
<arg_key>timeout</arg_key>
<arg_value>20</arg_value>
</tool_call><|observation|>""",
    "glm47": (
        f"<tool_call>terminal<arg_key>command</arg_key><arg_value>{COMMAND}</arg_value></tool_call>"
    ),
}
"""What a model of the family writes to run the command."""


async def _reward(result: AgentResult, ctx: ToolContext) -> float:
    return float((await ctx.terminal("cat proof.txt"))["output"] == WRITTEN)


async def _rollout(parser: str, texts: Sequence[str]) -> tuple[Any, Any]:
    """Play ``texts`` as the model's turns; return the result and the requests the server saw."""
    config = EnvConfig(terminal_backend="local", tool_call_parser=parser, rollout_retries=0)
    script = answer_in_turn([say(text) for text in texts], then=say("Done."))
    async with serve_model(script) as server:
        model = ServerConfig(base_url=server.base_url, model_name="m")
        async with RolloutEngine(config, [model]) as engine:
            result = await engine.rollout(FakeTask(reward=_reward))
        return result, server.requests


@pytest.mark.parametrize("parser", sorted(TURNS))
async def test_a_call_written_as_text_runs_in_the_sandbox(parser: str) -> None:
    result, requests = await _rollout(parser, [TURNS[parser]])
    assert result.status == "finished", result.failure
    assert result.reward is not None
    assert result.reward.value == 1.0
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.FINISHED
    assert result.agent.counters["tool_calls"] == 1
    # the next request shows the model its call and the result, under one id
    _, assistant, answer = requests[1].messages[-3:]
    (call,) = assistant["tool_calls"]
    assert (call["function"]["name"], answer["role"]) == ("terminal", "tool")
    assert answer["tool_call_id"] == call["id"]
    assert "tool_call" not in (assistant["content"] or "").lower()
    if parser == "kimi_k2":
        assert call["id"] == "functions.terminal:0"


@pytest.mark.parametrize("parser", sorted(TURNS))
async def test_a_call_that_was_cut_off_is_told_and_never_run(parser: str) -> None:
    text = TURNS[parser]
    cut = text[: text.index("{c}")]
    result, requests = await _rollout(parser, [cut, text])
    assert result.agent is not None
    assert result.agent.counters["invalid_truncated"] == 1
    assert result.agent.counters["tool_calls"] == 1
    assert "cut off" in str(requests[1].messages[-1])
    assert result.reward is not None
    assert result.reward.value == 1.0


async def test_a_parser_of_another_family_shows_in_the_counters() -> None:
    result, _ = await _rollout("hermes", [TURNS["qwen3_coder"]])
    assert result.agent is not None
    assert result.agent.stop_reason is StopReason.FINISHED
    assert result.agent.counters == {"marker_without_call": 1}
    assert result.reward is not None
    assert result.reward.value == 0.0
