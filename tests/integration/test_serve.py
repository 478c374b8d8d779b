"""The scheduler against the real ``run-api``: what is promised when things break."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.scheduler import Scheduler
from hermes_rl.atropos.trajectory_api import TrajectoryAPI, open_trajectory_api
from hermes_rl.errors import ConfigError, ModelTransient, ModelUnauthorized

from .serving import NumbersEnv, TokenModel, config_for, opened
from .trajectory_server import Trainer, TrajectoryServer, trajectory_server


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[TrajectoryServer]:
    async with trajectory_server(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def trainer(server: TrajectoryServer) -> AsyncIterator[Trainer]:
    trainer = Trainer(server.url, batch_size=4)
    await trainer.register()
    yield trainer
    await trainer.aclose()


@pytest_asyncio.fixture
async def api(server: TrajectoryServer) -> AsyncIterator[TrajectoryAPI]:
    async with open_trajectory_api(server.url, max_wait_s=30) as client:
        yield client


async def train(trainer: Trainer, batches: int, *, pause_s: float = 0.02) -> None:
    with anyio.fail_after(60):
        while len(trainer.batches) < batches:
            await trainer.pull()
            await anyio.sleep(pause_s)


async def serve(env: NumbersEnv, api: TrajectoryAPI, trainer: Trainer, batches: int) -> Scheduler:
    scheduler = Scheduler(env, api)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(scheduler.run)
        await train(trainer, batches)
    return scheduler


def check_exact(trainer: Trainer, group_size: int) -> None:
    for group in itertools.chain.from_iterable(trainer.batches):
        assert len(group["tokens"]) == group_size
        for tokens, masks, logprobs in zip(
            group["tokens"], group["masks"], group["inference_logprobs"], strict=True
        ):
            assert len(tokens) == len(masks) == len(logprobs)
            assert [m != -100 for m in masks] == [lp != 1.0 for lp in logprobs]
            assert all(m in (-100, t) for m, t in zip(masks, tokens, strict=True))


async def test_groups_arrive_until_the_last_step_with_exact_tokens(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    async with opened(config_for(server.url)) as env:
        scheduler = await serve(env, api, trainer, 3)
        assert env.curr_step >= 3
    check_exact(trainer, 2)
    assert scheduler.counters.sent >= 6
    assert scheduler.counters.failed == 0


async def test_a_full_queue_pauses_admission_and_kills_nothing(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    async with opened(config_for(server.url, max_batches_offpolicy=2)) as env:
        scheduler = Scheduler(env, api)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scheduler.run)
            await anyio.sleep(4)
            paused_at = scheduler.counters.admitted
            assert paused_at <= 2 * 2 + 1  # 2 batches of 2 groups, one of them may be in the air
            assert scheduler.counters.sent == paused_at
            await anyio.sleep(1)
            assert scheduler.counters.admitted == paused_at
            await train(trainer, 3)
    check_exact(trainer, 2)


async def test_one_rollout_in_ten_raising_costs_no_group(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    calls = itertools.count(1)
    model = TokenModel()
    model.fail = lambda: ModelTransient("broken pipe") if next(calls) % 10 == 0 else None
    async with opened(config_for(server.url, total_steps=8), model) as env:
        scheduler = await serve(env, api, trainer, 8)
    check_exact(trainer, 2)
    assert scheduler.counters.given_up == 0
    assert scheduler.counters.sent >= 16


async def test_a_model_server_away_for_a_while_costs_no_item(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    model = TokenModel()
    async with opened(config_for(server.url), model) as env:
        model.fail = lambda: ModelTransient("connection refused")
        scheduler = Scheduler(env, api)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scheduler.run)
            await anyio.sleep(2)
            assert scheduler.counters.sent == 0
            assert scheduler.counters.failed <= 12, "a dead server must not be hammered"
            model.fail = lambda: None
            await train(trainer, 3)
    assert scheduler.counters.given_up == 0


async def test_a_restarted_api_gets_the_rest_of_the_run(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    model = TokenModel(delay_s=0.05)
    async with opened(config_for(server.url, total_steps=4, resend_on_restart=True), model) as env:
        scheduler = Scheduler(env, api)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(scheduler.run)
            await train(trainer, 1)
            server.kill()
            await anyio.sleep(1)
            await server.start()
            await trainer.register()
            await train(trainer, 4)
            scheduler.stop()
    check_exact(trainer, 2)
    assert scheduler.counters.registrations == 2
    received = sum(len(batch) for batch in trainer.batches)
    assert received >= 8


async def test_stop_train_lets_no_group_start_while_it_evaluates(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    async with opened(config_for(server.url, steps_per_eval=1, total_steps=4)) as env:
        env.evaluation_s = 1.0
        scheduler = await serve(env, api, trainer, 4)
        assert env.evaluated_at, "steps_per_eval=1 must evaluate"
    assert scheduler.counters.evaluations == len(env.evaluated_at)
    check_exact(trainer, 2)


async def test_stopping_sends_what_is_finished_and_leaves_nothing(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    model = TokenModel(delay_s=0.3)
    async with opened(config_for(server.url, total_steps=1000), model) as env:
        scheduler = Scheduler(env, api)
        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(scheduler.run)
                await train(trainer, 1)
                scheduler.stop()
        assert env.engine is not None
    assert scheduler.counters.sent >= 2


async def test_a_refused_key_stops_the_run_with_its_reason(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    model = TokenModel()
    model.fail = lambda: ModelUnauthorized("the key is wrong")
    async with opened(config_for(server.url), model) as env:
        with pytest.raises(ModelUnauthorized, match="the key is wrong"), anyio.fail_after(60):
            await Scheduler(env, api).run()


async def test_a_batch_size_that_can_never_be_formed_is_refused(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    async with opened(config_for(server.url, group_size=3)) as env:
        with pytest.raises(ConfigError, match="no multiple of group_size"):
            await Scheduler(env, api).run()
