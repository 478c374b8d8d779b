"""A model server in a process of its own: asks for a tool call ten times, then speaks.

Prints its address and serves until its standard input closes.
"""

from __future__ import annotations

import sys

import anyio
import anyio.to_thread

from hermes_rl.testing.model_server import Answer, SeenRequest, call_tool, say, serve_model

CALLS = 10


def script(request: SeenRequest) -> Answer:
    spoken = request.raw.count(b'"role":"assistant"')
    return call_tool("terminal", {"command": "true"}) if spoken < CALLS else say("done")


async def main() -> None:
    async with serve_model(script) as server:
        print(server.base_url, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main)
