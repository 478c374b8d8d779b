"""CPU of a model call with 512 in flight: our client against httpx with its own pool."""

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import httpx
import pytest

from hermes_rl.config import ServerConfig
from hermes_rl.model import Sampling
from hermes_rl.model.limiter import AdaptiveLimiter
from hermes_rl.model.openai import open_openai
from hermes_rl.types import Message
from tests.proof import Proof

PROOF = "perf"
IN_FLIGHT = 512
MESSAGES: list[Message] = [{"role": "user", "content": "x" * 500} for _ in range(20)]
MAX_RATIO = 0.1
"""Ours to httpx's; 0.016 to 0.025 was measured on two busy cores."""

Turn = Callable[[], Awaitable[None]]


@pytest.fixture
def base_url() -> Iterator[str]:
    """A server in another process, whose CPU time is not measured."""
    script = Path(__file__).with_name("slow_model_server.py")
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate(timeout=10)


async def measure(turn: Turn, rounds: int) -> float:
    """Return CPU seconds per call, after one round that opens the connections."""

    async def repeat(times: int) -> None:
        for _ in range(times):
            await turn()

    async def all_at_once(times: int) -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(IN_FLIGHT):
                tasks.start_soon(repeat, times)

    await all_at_once(1)
    before = time.process_time()
    await all_at_once(rounds)
    return (time.process_time() - before) / (IN_FLIGHT * rounds)


async def ours(base_url: str) -> float:
    limiter = AdaptiveLimiter(IN_FLIGHT, start=IN_FLIGHT)
    config = ServerConfig(base_url=base_url, model_name="m", context_tokens=100_000)
    async with open_openai(config, limiter=limiter, environ={}) as model:

        async def turn() -> None:
            async with model.session(tools=(), sampling=Sampling()) as session:
                completion = await session.complete(MESSAGES)
            assert completion.message is not None
            assert completion.usage.requests == 1

        return await measure(turn, rounds=6)


async def httpx_alone(base_url: str) -> float:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=None) as client:

        async def turn() -> None:
            body = {"model": "m", "messages": MESSAGES, "temperature": 1.0}
            response = await client.post(f"{base_url}/chat/completions", json=body)
            assert response.json()["choices"]

        return await measure(turn, rounds=1)


@pytest.mark.perf
@pytest.mark.timeout(300)
def test_a_call_with_512_in_flight_costs_a_fraction_of_httpx_alone(
    base_url: str, proof: Proof
) -> None:
    our_s = anyio.run(ours, base_url)
    their_s = anyio.run(httpx_alone, base_url)
    said = f"{our_s * 1e6:.0f} us, httpx {their_s * 1e6:.0f} us, x {our_s / their_s:.3f}"
    proof(f"{f'CPU per model call, {IN_FLIGHT} in flight':<44} {said:>36}  < {MAX_RATIO} x httpx")
    assert our_s < MAX_RATIO * their_s
