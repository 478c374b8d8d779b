"""What a caller gives an engine that is none of what it takes: an error that says what to give."""

from typing import Any

import pytest

from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.engine_arguments import check_event_loop
from hermes_rl.errors import ConfigError
from hermes_rl.model.oracle import OracleModel
from hermes_rl.model.scripted import ScriptedModel, nop_model
from hermes_rl.testing.fake_sandbox import FakeBackend

CONFIG = EnvConfig()


class _Atropos:
    async def chat_completion(self, **_: Any) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"config": {}}, "must be an EnvConfig, not dict"),
        ({"config": EnvConfig}, "must be an EnvConfig, not the class EnvConfig"),
        ({"model": None}, "either servers or a model"),
        ({"servers": [ServerConfig()]}, "either servers or a model"),
        ({"model": None, "servers": ServerConfig()}, r"list of ServerConfig: \[ServerConfig"),
        ({"model": None, "servers": ["http://x"]}, r"list of ServerConfig: \[ServerConfig"),
        ({"model": "gpt"}, "ChatModel, not str"),
        ({"model": ScriptedModel}, "ChatModel, not the class ScriptedModel"),
        ({"model": _Atropos()}, r"ChatCompletionModel\(it\)"),
        ({"backend": "docker"}, r"Backend, not str.*EnvConfig\(terminal_backend="),
        ({"backend": FakeBackend}, "Backend, not the class FakeBackend"),
    ],
)
def test_a_wrong_argument_is_named_with_what_to_give(arguments: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RolloutEngine(**{"config": CONFIG, "model": nop_model(), **arguments})


def test_a_model_per_task_is_taken() -> None:
    RolloutEngine(CONFIG, model=OracleModel())


async def test_asyncio_is_taken() -> None:
    check_event_loop()


def test_another_event_loop_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match=r"asyncio .*only\. Under trio"):
        check_event_loop()
