"""The event loop stays free while long groups are made, packed and sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.scheduler import Scheduler
from hermes_rl.atropos.trajectory_api import open_trajectory_api
from hermes_rl.model.protocol import Sampling
from hermes_rl.testing.loop_monitor import loop_monitor
from hermes_rl.types import Completion, JSONObject, Message, TokenSequence, Usage

from .serving import TokenModel, config_for, opened
from .trajectory_server import Trainer, trajectory_server

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


@pytest.mark.timeout(240)
async def test_no_callback_takes_10_ms_while_groups_of_8_times_32k_tokens_are_sent(
    tmp_path: Path,
) -> None:
    async with trajectory_server(tmp_path) as server:
        trainer = Trainer(server.url, batch_size=8, max_token_len=LENGTH + 1)
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
            scheduler = Scheduler(env, api)
            with loop_monitor():
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(scheduler.run)
                    with anyio.fail_after(180):
                        while scheduler.counters.sent < 8:
                            await anyio.sleep(0.05)
                    scheduler.stop()
            assert scheduler.counters.sent >= 8
        await trainer.aclose()
