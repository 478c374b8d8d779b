"""A model server in a process of its own that takes a while over every answer.

Prints its address and serves until its standard input closes.
"""

from __future__ import annotations

import sys

import anyio
import anyio.to_thread

from hermes_rl.testing.model_server import always, say, serve_model, slow

ANSWER_S = 0.3


async def main() -> None:
    async with serve_model(always(slow(say("hello " * 20), ANSWER_S))) as server:
        print(server.base_url, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


if __name__ == "__main__":
    anyio.run(main)
