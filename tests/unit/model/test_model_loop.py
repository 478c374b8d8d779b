"""Large conversations must not keep the event loop busy."""

import orjson

from hermes_rl.config import ServerConfig
from hermes_rl.model import Sampling
from hermes_rl.model.openai import open_openai
from hermes_rl.testing.loop_monitor import run_without_long_callbacks
from hermes_rl.testing.model_server import always, call_tool, serve_model
from hermes_rl.types import Message

ARGUMENTS = orjson.dumps({"content": 'line\n"quoted" ä ' * 55_000}).decode()
ANSWER = call_tool("write_file", ARGUMENTS)


def long_history() -> list[Message]:
    """Return 12 MB in 60 messages."""
    text = 'line\n"quoted" ä ' * 11_000
    return [{"role": "user", "content": f"{number} {text}"} for number in range(60)]


async def three_turns(messages: list[Message]) -> int:
    """Speak three turns with a megabyte of arguments each; return the last request's size."""
    async with serve_model(always(ANSWER)) as server:
        config = ServerConfig(base_url=server.base_url, model_name="m", context_tokens=1)
        async with (
            open_openai(config, environ={}) as model,
            model.session(tools=(), sampling=Sampling()) as session,
        ):
            for _ in range(3):
                turn = await session.complete(messages)
                assert turn.message is not None
                call_id = turn.tool_calls[0].id
                answer = {"role": "tool", "tool_call_id": call_id, "content": "ok"}
                messages += [turn.message, answer]
        return len(server.requests[-1].raw)


async def test_twelve_megabytes_of_history_and_one_of_arguments_do_not_block_the_loop() -> None:
    history = long_history()
    # The server of this test shares the loop; what it does is not measured.
    sent_bytes = await run_without_long_callbacks(
        lambda: three_turns(history[:60]), ignored="RequestHandler"
    )
    assert sent_bytes > 12_000_000
