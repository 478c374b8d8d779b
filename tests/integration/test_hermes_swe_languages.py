"""``hermes-swe`` in every language whose tools are here: real sandboxes, real compilers."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.envs.hermes_swe_env.languages import LANGUAGES, Language
from hermes_rl.envs.hermes_swe_env.task_set import swe_task
from hermes_rl.errors import ConfigError
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.results import RolloutResult
from hermes_rl.tasks import TaskDescription

from .swe_rows import SAMPLES

pytestmark = pytest.mark.timeout(240)


class Commands:
    """A model that runs one command per task, and says that it is done."""

    name = "commands"
    context_tokens: int | None = None

    def __init__(self, commands: Mapping[str, str]) -> None:
        self._commands = commands

    def for_task(self, description: TaskDescription) -> ScriptedModel:
        command = self._commands[description.id]
        return ScriptedModel(replay([call("terminal", {"command": command})]))


def works(language: Language, home: Path) -> bool:
    """Say whether every tool of a language answers, for a user whose home is empty as theirs."""
    environment = {**os.environ, "HOME": str(home)}
    for question in language.tools.values():
        try:
            asked = subprocess.run(
                question, shell=True, capture_output=True, timeout=60, env=environment, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        if asked.returncode:
            return False
    return True


async def outcomes(language: str, commands: Mapping[str, str]) -> dict[str, RolloutResult]:
    """Play the language's row once per command, named by it."""
    task = swe_task(SAMPLES[language].row, 0)
    config = EnvConfig(terminal_backend="local", enabled_toolsets=["terminal"], rollout_retries=0)
    results: dict[str, RolloutResult] = {}
    async with (
        RolloutEngine(config, model=Commands(commands)) as engine,
        anyio.create_task_group() as group,
    ):

        async def one(name: str) -> None:
            results[name] = await engine.rollout(replace(task, id=name))

        for name in commands:
            group.start_soon(one, name)
    return results


@pytest.mark.parametrize("name", LANGUAGES)
async def test_rewards_are_what_the_hidden_tests_say(name: str, tmp_path: Path) -> None:
    language, sample = LANGUAGES[name], SAMPLES[name]
    if not works(language, tmp_path):
        pytest.skip(f"needs {', '.join(language.tools)}")
    task = swe_task(sample.row, 0)
    assert task.reference is not None
    files = {
        "right": task.reference,
        "wrong": sample.wrong,
        "quits": sample.quits,
        "broken": sample.broken,
    }
    write = {name: f"printf %s {shlex.quote(text)} >" for name, text in files.items()}
    commands = {name: f"{words} ~/{language.file}" for name, words in write.items()}
    commands["from elsewhere"] = f"{commands['right']}; mkdir -p ~/deep; cd ~/deep"
    commands["another file"] = f"mkdir -p ~/src; {write['right']} ~/src/mine{language.suffix}"
    commands["nothing"] = "echo hello > ~/notes.txt"
    results = await outcomes(name, commands)
    assert {name: result.status for name, result in results.items()} == dict.fromkeys(
        commands, "finished"
    ), {name: result.failure for name, result in results.items()}
    scores = {name: result.score for name, result in results.items()}
    assert scores == {
        "right": 1.0,
        "from elsewhere": 1.0,
        "wrong": 0.1,
        "quits": 0.1,
        "broken": 0.1,
        "another file": 0.1,
        "nothing": 0.0,
    }, {name: result.reward for name, result in results.items()}


async def test_a_sandbox_without_the_tools_stops_the_run_before_the_model_is_asked() -> None:
    tools = {"no-such-compiler": "no-such-compiler --version"}
    lacking = replace(LANGUAGES["python"], tools=tools)
    task = replace(swe_task(SAMPLES["python"].row, 0), language=lacking)
    config = EnvConfig(terminal_backend="local", enabled_toolsets=["terminal"])
    asked = Commands({"Python-1": "true"})
    async with RolloutEngine(config, model=asked) as engine:
        with pytest.raises(ConfigError, match=r"no no-such-compiler .*--env.terminal_image"):
            await engine.rollout(task)


async def test_tests_that_need_a_crate_skip_the_task_and_say_which() -> None:
    row = SAMPLES["python"].row
    needy = replace(
        LANGUAGES["rust"], tools=LANGUAGES["python"].tools
    )  # the crate is what is missed, with or without a compiler
    task = replace(swe_task(row | {"test": "let x = rand::thread_rng();"}, 0), language=needy)
    config = EnvConfig(terminal_backend="local", enabled_toolsets=["terminal"])
    async with RolloutEngine(config, model=Commands({"Python-1": "true"})) as engine:
        result = await engine.rollout(task)
    assert result.status == "skipped"
    assert result.failure is not None
    assert "the crate rand" in result.failure.message
