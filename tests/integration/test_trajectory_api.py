"""Our client against the real ``run-api``."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import pytest_asyncio

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.encoding import compress, encode_parts
from hermes_rl.atropos.trajectory_api import (
    APIRefused,
    APIRestarted,
    APIUnavailable,
    TrajectoryAPI,
    open_trajectory_api,
)
from hermes_rl.errors import ConfigError

from .free_port import free_port
from .trajectory_server import Trainer, TrajectoryServer, trajectory_server


def group(size: int = 2, length: int = 3) -> dict[str, object]:
    return {
        "tokens": [list(range(length))] * size,
        "masks": [[-100] * length] * size,
        "scores": [0.5] * size,
        "inference_logprobs": [[1.0] * length] * size,
        "messages": [[{"role": "user", "content": "hi \U0001f600"}]] * size,
        "overrides": [{}] * size,
        "group_overrides": {},
    }


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
    async with open_trajectory_api(server.url, max_wait_s=20) as client:
        yield client


async def register(api: TrajectoryAPI, group_size: int = 2) -> None:
    await api.register(name="env", group_size=group_size, max_token_length=100, poll_s=0.05)


async def test_groups_reach_the_trainer_with_logprobs(api: TrajectoryAPI, trainer: Trainer) -> None:
    await register(api)
    assert await api.info() == (4, 4096)
    assert await api.wandb_info() == ("g", "p")
    await api.send(group())
    await api.send(group())
    assert (await api.status()).self_queue_size == 2
    batch = await trainer.pull()
    assert batch is not None
    assert [item["inference_logprobs"] for item in batch] == [[[1.0] * 3] * 2] * 2
    assert (await api.status()).current_step == 1
    assert api.counters.sent == 2


async def test_registration_waits_for_the_first_pull_of_the_trainer(
    server: TrajectoryServer, api: TrajectoryAPI
) -> None:
    trainer = Trainer(server.url, batch_size=4)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(register, api)
        await anyio.sleep(0.3)
        assert api.env_id is None
        await trainer.register()
    assert api.env_id == 0
    await trainer.aclose()


async def test_a_group_of_another_size_is_an_error_not_a_group_held_back_for_ever(
    api: TrajectoryAPI, trainer: Trainer
) -> None:
    await register(api, group_size=4)
    with pytest.raises(APIRefused, match="another group_size"):
        await api.send(group(size=2))


async def test_a_refused_group_is_an_error_with_the_reason(
    api: TrajectoryAPI, trainer: Trainer
) -> None:
    await register(api)
    with pytest.raises(APIRefused, match="'role' and 'content'"):
        await api.send({**group(), "messages": [[{"role": "assistant"}]] * 2})


async def test_a_restarted_api_is_noticed_and_gets_what_it_had_not_handed_out(
    server: TrajectoryServer, api: TrajectoryAPI, trainer: Trainer
) -> None:
    await register(api)
    await api.send(group())
    server.kill()
    await server.start()
    await trainer.register()
    with pytest.raises(APIRestarted):
        await api.status()
    await register(api)
    assert await api.resend() == 1
    await api.send(group())
    batch = await trainer.pull()
    assert batch is not None
    assert len(batch) == 2
    assert api.counters.resent_after_restart == 1


async def test_groups_that_were_pulled_are_not_sent_again(
    api: TrajectoryAPI, trainer: Trainer
) -> None:
    await register(api)
    await api.send(group())
    await api.send(group())
    await trainer.pull()
    await api.status()
    assert await api.resend() == 0


async def test_an_absent_api_is_reported_with_its_address() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with open_trajectory_api(url, max_wait_s=1) as api:
        with pytest.raises(APIUnavailable, match="Is run-api running"):
            await api.info()


async def test_a_negative_weight_is_refused_before_it_breaks_the_api(api: TrajectoryAPI) -> None:
    with pytest.raises(ConfigError, match="inference_weight"):
        await api.register(name="env", group_size=2, max_token_length=10, weight=-1.0)


async def test_encoding_equals_plain_json_at_any_size() -> None:
    for length in (0, 1, 16_384, 16_385, 40_000):
        data = group(length=length)
        body = b"".join(await encode_parts(data))
        assert json.loads(body) == data
        assert json.loads(gzip.decompress(await compress([body[:7], body[7:]]))) == data


async def test_a_value_that_is_no_json_is_named() -> None:
    with pytest.raises(TypeError, match="scores"):
        await encode_parts({"scores": [object()]})
