"""Several servers as one model."""

from collections.abc import Sequence

import pytest

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ModelError, ModelRejected, ModelTransient
from hermes_rl.model import Sampling
from hermes_rl.model.open import open_model
from hermes_rl.model.pool import COOL_OFF_S, ModelPool
from hermes_rl.model.scripted import ScriptedModel, say
from hermes_rl.testing import model_server
from hermes_rl.types import Completion, Message

HELLO: list[Message] = [{"role": "user", "content": "hello"}]


def speaking(name: str, *, error: ModelError | None = None) -> ScriptedModel:
    def script(messages: Sequence[Message]) -> Completion:
        if error is not None:
            raise error
        return say(name)

    return ScriptedModel(script, name=name)


async def who_answers(pool: ModelPool) -> str:
    async with pool.session(tools=(), sampling=Sampling()) as session:
        answer = await session.complete(HELLO)
    assert answer.message is not None
    return str(answer.message["content"])


async def test_sessions_spread_by_load_and_stay_where_they_began() -> None:
    pool = ModelPool([speaking("a"), speaking("b"), speaking("c")])
    opened = [pool.session(tools=(), sampling=Sampling()) for _ in range(6)]
    sessions = [await context.__aenter__() for context in opened]
    assert pool.open_sessions == (2, 2, 2)
    for _ in range(2):
        said = [(await session.complete(HELLO)).message for session in sessions]
        assert [message["content"] for message in said if message] == list("abcabc")
    await opened[1].__aexit__(None, None, None)
    assert pool.open_sessions == (2, 1, 2)
    assert await who_answers(pool) == "b"
    for index in (0, 2, 3, 4, 5):
        await opened[index].__aexit__(None, None, None)
    assert pool.open_sessions == (0, 0, 0)


async def test_a_server_that_failed_is_passed_over_for_a_while() -> None:
    now_s = [0.0]
    broken = speaking("a", error=ModelTransient("down"))
    pool = ModelPool([broken, speaking("b")], clock=lambda: now_s[0])
    with pytest.raises(ModelTransient):
        await who_answers(pool)
    assert [await who_answers(pool) for _ in range(3)] == ["b", "b", "b"]
    now_s[0] += COOL_OFF_S
    with pytest.raises(ModelTransient):
        await who_answers(pool)


async def test_failing_servers_are_used_when_there_is_no_other() -> None:
    pool = ModelPool([speaking("a", error=ModelTransient("down"))])
    for _ in range(2):
        with pytest.raises(ModelTransient):
            await who_answers(pool)


async def test_a_rejected_request_is_not_the_servers_failure() -> None:
    pool = ModelPool([speaking("a", error=ModelRejected("bad")), speaking("b")])
    for _ in range(2):
        with pytest.raises(ModelRejected):
            await who_answers(pool)


async def test_a_failed_session_gives_its_place_back() -> None:
    pool = ModelPool([speaking("a", error=ModelTransient("down")), speaking("b")])
    with pytest.raises(ModelTransient):
        await who_answers(pool)
    assert pool.open_sessions == (0, 0)


def test_names_and_context_of_the_members_are_joined() -> None:
    members = [speaking("a"), speaking("a"), speaking("b")]
    members[0].context_tokens, members[2].context_tokens = 8192, 4096
    pool = ModelPool(members)
    assert (pool.name, pool.context_tokens) == ("a, b", 4096)


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ModelPool([])


async def test_rollouts_are_spread_over_real_servers_and_keep_theirs() -> None:
    answers = [model_server.always(model_server.say(name)) for name in "ab"]
    async with model_server.serve_model(answers[0]) as a, model_server.serve_model(answers[1]) as b:
        servers = [ServerConfig(base_url=s.base_url, model_name="m") for s in (a, b)]
        async with (
            open_model(servers) as model,
            model.session(tools=(), sampling=Sampling()) as first,
            model.session(tools=(), sampling=Sampling()) as second,
        ):
            for _ in range(3):
                await first.complete(HELLO)
                await second.complete(HELLO)
        assert (len(a.requests), len(b.requests)) == (3, 3)
