"""A tool-call parser that breaks on one turn costs that rollout, and no other."""

from collections.abc import Sequence
from typing import Any

import pytest

from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.openai import open_openai
from hermes_rl.model.reply import LONG_TEXT_CHARS
from hermes_rl.testing.fake_sandbox import FakeBackend
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.model_server import Answer, SeenRequest, say, serve_model
from hermes_rl.types import JSONObject, ParseResult, StopReason


class _Fragile:
    name = "fragile"

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def parse(
        self, text: str, tools: Sequence[JSONObject] | None = None, *_: Any, **__: Any
    ) -> ParseResult:
        if "break" in text:
            raise self._error
        return ParseResult(text, None)


def _echo(request: SeenRequest) -> Answer:
    return say(request.messages[-1]["content"])


@pytest.mark.parametrize("padding", ["", "x" * LONG_TEXT_CHARS], ids=["loop", "thread"])
@pytest.mark.parametrize("error", [KeyError("id"), SystemExit(2)], ids=["raises", "exits"])
async def test_a_parser_that_breaks_is_the_error_of_that_rollout_alone(
    error: BaseException, padding: str
) -> None:
    tasks = [FakeTask(id=word, prompt=word + padding) for word in ("first", "break", "last")]
    async with (
        serve_model(_echo) as server,
        open_openai(
            ServerConfig(base_url=server.base_url, model_name="m"), parser=_Fragile(error)
        ) as model,
        RolloutEngine(EnvConfig(), model=model, backend=FakeBackend()) as engine,
        engine.run(tasks) as results,
    ):
        ended = {result.task_id: result async for result in results}
        assert len(server.requests) == 3, "a text that breaks the parser is not sampled again"
    assert {name: result.status for name, result in ended.items()} == {
        "first": "finished",
        "break": "errored",
        "last": "finished",
    }
    broken = ended["break"]
    assert broken.reward is None
    assert broken.failure is not None
    assert (broken.failure.kind, broken.failure.phase) == ("ParserFault", "agent")
    assert "'fragile' broke" in broken.failure.message
    assert "The text began: 'break" in broken.failure.traceback
    assert broken.agent is not None
    assert broken.agent.stop_reason is StopReason.TOOL_FAULT
