"""The oracle and the models without a mind."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from hermes_rl.config import ServerConfig
from hermes_rl.errors import TaskError
from hermes_rl.model import ChatModel, Sampling
from hermes_rl.model.open import open_model
from hermes_rl.model.oracle import OracleModel
from hermes_rl.model.scripted import nop_model, random_model
from hermes_rl.rollout_site import PerTaskModel
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.tasks import Deadlines, Solution, TaskDescription
from hermes_rl.types import Completion, Message

USER: Message = {"role": "user", "content": "do it"}


def described(solution: Solution | None) -> TaskDescription:
    return TaskDescription(
        id="fix-it",
        messages=(USER,),
        sandbox=SandboxSpec(),
        deadlines=Deadlines(),
        metadata={},
        solution=solution,
        agent_user=None,
    )


async def play(model: ChatModel, turns: int) -> list[Completion]:
    played: list[Completion] = []
    messages: list[Message] = [USER]
    async with model.session(tools=[], sampling=Sampling()) as session:
        for _ in range(turns):
            played.append(await session.complete(messages))
            messages.append(played[-1].message or {})
    return played


def command(completion: Completion) -> str:
    (call,) = completion.tool_calls
    assert call.name == "terminal"
    text: str = orjson.loads(call.arguments)["command"]
    return text


async def test_the_oracle_runs_the_solution_in_one_call_and_then_is_done() -> None:
    model = OracleModel().for_task(described(Solution(command="make it", files=Path("/s"))))
    first, second = await play(model, 2)
    assert command(first) == "make it"
    assert second.tool_calls == ()


async def test_the_oracle_exports_the_solutions_environment_quoted() -> None:
    solution = Solution(command='echo "$NAME"', env={"NAME": "it's $HOME"})
    (turn,) = await play(OracleModel().for_task(described(solution)), 1)
    assert command(turn) == "export NAME='it'\"'\"'s $HOME'\necho \"$NAME\""


def test_a_task_without_a_solution_is_an_error_that_names_it() -> None:
    with pytest.raises(TaskError, match="'fix-it' has no solution"):
        OracleModel().for_task(described(None))


async def test_the_oracle_opens_by_server_type_and_refuses_to_speak_without_a_task() -> None:
    async with open_model([ServerConfig(server_type="oracle")]) as model:
        assert isinstance(model, PerTaskModel)
        with pytest.raises(TaskError, match="without a task"):
            model.session(tools=[], sampling=Sampling())


async def test_the_random_model_is_reproducible_and_differs_by_seed() -> None:
    commands = [[command(turn) for turn in await play(random_model(seed), 3)] for seed in (1, 1, 2)]
    assert commands[0] == commands[1]
    assert commands[0] != commands[2]
    assert len(set(commands[0])) > 1


async def test_the_random_and_the_nop_model_stop_by_themselves() -> None:
    assert (await play(random_model(), 4))[-1].tool_calls == ()
    assert (await play(nop_model(), 1))[0].tool_calls == ()
