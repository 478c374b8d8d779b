"""The engine inside other people's programs: fixtures, threads, cancelled tasks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from hermes_rl import AgentResult, EnvConfig, RolloutEngine, ServerConfig, Solution, ToolContext
from hermes_rl.errors import ConfigError, EngineClosed
from hermes_rl.testing.hosting import hosted


@dataclass
class Greeting:
    id: str = "greeting"
    prompt: str = "Write 'hello' to hello.txt"
    command: str = "echo hello > hello.txt"

    @property
    def solution(self) -> Solution:
        return Solution(command=self.command)

    async def reward(self, result: AgentResult, ctx: ToolContext) -> float:
        seen = await ctx.read_file("hello.txt")
        return float(str(seen.get("content", "")).strip() == "hello")


def make_engine() -> RolloutEngine:
    servers = [ServerConfig(server_type="oracle")]
    return RolloutEngine(EnvConfig(terminal_backend="local"), servers)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[RolloutEngine]:
    async with hosted(make_engine()) as engine:
        yield engine


async def test_an_engine_in_a_fixture_serves_any_task(engine: RolloutEngine) -> None:
    async def score(number: int) -> float | None:
        return (await engine.rollout(Greeting(f"g{number}"))).score

    assert await asyncio.gather(*map(score, range(3))) == [1.0] * 3
    async with engine.run([Greeting()], attempts=2) as results:
        assert [result.score async for result in results] == [1.0, 1.0]


async def test_leaving_an_engine_in_another_task_closes_it_and_says_what_to_do() -> None:
    engine = make_engine()
    await asyncio.create_task(engine.__aenter__())
    assert (await engine.rollout(Greeting())).score == 1.0
    with pytest.raises(ConfigError, match=r"another task.*hosting\.hosted"):
        await engine.__aexit__(None, None, None)
    with pytest.raises(EngineClosed):
        await engine.rollout(Greeting())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancelled_task_takes_its_engine_along() -> None:
    started = asyncio.Event()

    async def service() -> None:
        async with make_engine() as engine:
            endless = Greeting(command="sleep 300")
            handle = engine.start(endless)
            started.set()
            await handle.result()

    task = asyncio.create_task(service())
    await started.wait()
    task.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_an_engine_runs_in_a_thread_that_is_not_the_first() -> None:
    scores: list[float | None] = []

    async def main() -> None:
        async with make_engine() as engine, engine.run([Greeting()], attempts=4) as results:
            async for result in results:
                scores.append(result.score)
                break

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert scores == [1.0]
