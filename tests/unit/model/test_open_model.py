"""From server configurations to a model."""

import logging
import sys

import pytest

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ConfigError
from hermes_rl.model import ChatModel, Sampling
from hermes_rl.model.open import open_model
from hermes_rl.model.openai import OpenAIModel
from hermes_rl.model.pool import ModelPool
from hermes_rl.testing.model_server import always, say, serve_model


async def opened(config: ServerConfig, **options: int) -> ChatModel:
    async with open_model([config], **options) as model:  # type: ignore[arg-type]
        return model


async def test_one_server_is_its_own_model_and_several_are_a_pool() -> None:
    async with serve_model(always(say("hi"))) as server:
        config = ServerConfig(base_url=server.base_url, model_name="m")
        assert isinstance(await opened(config), OpenAIModel)
        async with open_model([config, config]) as model:
            assert isinstance(model, ModelPool)
            assert isinstance(model, ChatModel)


async def test_the_lower_of_both_limits_holds() -> None:
    config = ServerConfig(base_url="http://127.0.0.1:9/v1", num_max_requests_at_once=20)
    for max_calls, expected in ((256, 20), (5, 5)):
        model = await opened(config, max_calls=max_calls)
        assert isinstance(model, OpenAIModel)
        assert model.retrier.limiter.limit == expected


async def test_nop_says_nothing() -> None:
    async with (
        open_model([ServerConfig(server_type="nop")]) as model,
        model.session(tools=(), sampling=Sampling()) as session,
    ):
        answer = await session.complete([{"role": "user", "content": "hello"}])
    assert answer.message == {"role": "assistant", "content": ""}


async def test_no_server_is_an_error_that_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"--openai\.server_type"):
        async with open_model([]):
            pass


async def test_a_script_cannot_come_from_a_configuration() -> None:
    with pytest.raises(ConfigError, match="scripted cannot be opened from a configuration"):
        await opened(ServerConfig(server_type="scripted"))


async def test_fields_without_effect_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    configs = [
        ServerConfig(server_type="nop", health_check=True, n_kwarg_is_ignored=True),
        ServerConfig(server_type="nop", health_check=True),
    ]
    with caplog.at_level(logging.WARNING, logger="hermes_rl"):
        async with open_model(configs):
            pass
        async with open_model([ServerConfig(server_type="nop")]):
            pass
    assert [record.getMessage() for record in caplog.records] == [
        "health_check, n_kwarg_is_ignored: accepted, but without effect here."
    ]


async def test_only_the_type_in_use_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "hermes_rl.model.openai", raising=False)
    async with open_model([ServerConfig(server_type="nop")]):
        assert "hermes_rl.model.openai" not in sys.modules


async def test_a_failure_of_the_second_server_closes_the_first() -> None:
    async with serve_model(always(say("hi"))) as server:
        good = ServerConfig(base_url=server.base_url, model_name="m")
        bad = ServerConfig(base_url="ftp://x", model_name="m")
        with pytest.raises(ConfigError, match="http://"):
            async with open_model([good, bad]):
                pass
