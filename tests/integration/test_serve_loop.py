"""The event loop stays free while long groups are made, packed and sent and rollouts go on."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.scheduler import Scheduler
from hermes_rl.atropos.trajectory_api import TrajectoryAPI, open_trajectory_api
from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.protocol import Sampling
from hermes_rl.testing.fake_sandbox import FakeBackend
from hermes_rl.testing.fake_tasks import FakeTask
from hermes_rl.testing.loop_monitor import MAX_CALLBACK_S, watched_callbacks
from hermes_rl.types import Completion, JSONObject, Message, TokenSequence, Usage

from .serving import NumbersEnv, TokenModel, config_for, opened
from .trajectory_server import Trainer, trajectory_server

ROLLOUTS = 64
GROUPS = 8
SPIKES = 1
"""Taken for noise: everything here is done at least eight times. See the loop monitor."""
WATCHED_S = 0.002
"""Callbacks above this are listed in the output."""
LENGTH = 32_768
TOKENS = list(range(LENGTH))
MASKS = [-100] * (LENGTH // 2) + TOKENS[LENGTH // 2 :]
LOGPROBS = [1.0] * (LENGTH // 2) + [-0.123456789 * n for n in range(LENGTH // 2)]


class LongModel(TokenModel):
    """Samples 32k tokens at once; making them costs nothing, so only our own work is measured."""

    context_tokens = 2 * LENGTH

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[_LongSession]:
        yield _LongSession(seed or 0)


class _LongSession:
    def __init__(self, seed: int) -> None:
        self.sequences: list[TokenSequence] = []
        self._seed = seed

    async def complete(self, messages: Sequence[Message]) -> Completion:
        await anyio.sleep(0.05)
        self.sequences = [TokenSequence(TOKENS, MASKS, LOGPROBS, {"finish_reason": "stop"})]
        return Completion(
            message={"role": "assistant", "content": "x" * (self._seed % 17)},
            usage=Usage(requests=1),
        )


class Chatter:
    """64 rollouts at once over HTTP, ten tool calls each, again and again."""

    def __init__(self) -> None:
        self.finished = 0

    async def run(self, base_url: str) -> None:
        config = EnvConfig(max_agent_turns=20, max_eval_workers=ROLLOUTS)
        server = ServerConfig(base_url=base_url, model_name="scripted", api_key="x")
        async with RolloutEngine(config, [server], backend=FakeBackend()) as engine:
            for number in itertools.count():
                tasks = [FakeTask(id=f"t{number}-{n}") for n in range(ROLLOUTS)]
                async with engine.run(tasks, max_workers=ROLLOUTS) as results:
                    async for result in results:
                        assert result.status == "finished"
                        self.finished += 1


async def serve_long_groups(env: NumbersEnv, api: TrajectoryAPI, chatter: Chatter) -> Scheduler:
    """Serve until the groups are sent, at least one of them while rollouts finished."""
    scheduler = Scheduler(env, api)
    with model_server() as base_url, anyio.fail_after(180):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chatter.run, base_url)
            tasks.start_soon(scheduler.run)
            while scheduler.counters.sent < GROUPS or chatter.finished < ROLLOUTS:
                await anyio.sleep(0.05)
            scheduler.stop()
            tasks.cancel_scope.cancel()
    return scheduler


@contextmanager
def model_server() -> Iterator[str]:
    """A scripted model server in a process of its own."""
    program = Path(__file__).parents[1] / "perf/scripted_server.py"
    with subprocess.Popen(
        [sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


@pytest.mark.timeout(240)
async def test_no_callback_takes_10_ms_while_64_rollouts_stream_and_8_times_32k_tokens_are_sent(
    tmp_path: Path,
) -> None:
    chatter = Chatter()
    async with trajectory_server(tmp_path) as server:
        trainer = Trainer(server.url, batch_size=8, max_token_len=LENGTH)
        await trainer.register()
        config = config_for(
            server.url,
            group_size=8,
            max_num_workers=8,
            max_batches_offpolicy=8,
            max_token_length=LENGTH,
            total_steps=1000,
            ensure_scores_are_not_same=False,
        )
        async with (
            open_trajectory_api(server.url, max_wait_s=60) as api,
            opened(config, LongModel()) as env,
        ):
            with watched_callbacks(WATCHED_S) as watched:
                scheduler = await serve_long_groups(env, api, chatter)
        await trainer.aclose()
    worst = sorted(watched, key=lambda each: -each.cpu_s)[:5]
    print(f"\n{scheduler.counters.sent} groups, {chatter.finished} rollouts; longest: {worst}")
    assert scheduler.counters.sent >= GROUPS
    assert [str(each) for each in worst if each.cpu_s > MAX_CALLBACK_S][SPIKES:] == []
