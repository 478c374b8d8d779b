"""A model server in a process of its own, to be killed: ``chaos_model.py PORT``.

Asks for one tool call, then speaks.
"""

from __future__ import annotations

import sys

import anyio

from hermes_rl.testing.model_server import Answer, SeenRequest, call_tool, say, serve_model, slow

ANSWER_S = 0.1


def script(request: SeenRequest) -> Answer:
    is_answered = request.messages[-1]["role"] == "tool"
    answer = say("done") if is_answered else call_tool("terminal", {"command": "echo hi > f"})
    return slow(answer, ANSWER_S)


async def main() -> None:
    async with serve_model(script, port=int(sys.argv[1])):
        await anyio.sleep_forever()


if __name__ == "__main__":
    anyio.run(main)
