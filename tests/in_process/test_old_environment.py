"""An old environment, with its Modal boxes and its blocking reward, in the Atropos loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

from hermes_rl.atropos.jsonl import read_groups
from hermes_rl.atropos.process import Processor
from hermes_rl.cli.environments import find_environment
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.protocol import Sampling
from hermes_rl.model.scripted import call, replay
from hermes_rl.types import Completion, JSONObject, Message, TokenSequence

OLD = Path(__file__).parents[1] / "data/old_modal_env.py"


class Scripted:
    """Plays turns and has exact tokens of them."""

    name = "scripted"
    context_tokens = 4096

    def __init__(self, turns: Sequence[Completion]) -> None:
        self._play = replay(turns)

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[Scripted]:
        session = Scripted([])
        session._play = self._play
        yield session

    @property
    def sequences(self) -> list[TokenSequence]:
        return [TokenSequence([1, 2, 3], [-100, 2, 3], [1.0, -0.5, -0.5], {})]

    async def complete(self, messages: Sequence[Message]) -> Completion:
        await anyio.lowlevel.checkpoint()
        return self._play(messages)


@pytest.mark.parametrize("backend", ["local"])
async def test_an_old_environment_runs_as_it_is(tmp_path: Path, backend: str) -> None:
    environment: Any = find_environment(str(OLD))
    defaults, servers = environment.config_init()
    config = defaults.model_copy(
        update={
            "terminal_backend": backend,
            "legacy_workers": 0,
            "sync_reward": True,
            "total_steps": 2,
            "use_wandb": False,
            "ensure_scores_are_not_same": False,
            "rollout_retries": 0,
        }
    )
    env = environment(config, servers)
    model = Scripted([call("modal_exec", {"command": "echo from the agent"})])
    path = tmp_path / "groups.jsonl"
    async with RolloutEngine(config, model=model) as engine, env.opened(engine):
        await env.setup()
        await Processor(env, path, resume=False).run()
    groups = list(read_groups(path))
    assert [group["scores"] for group in groups] == [[1.0, 1.0], [1.0, 1.0]]
