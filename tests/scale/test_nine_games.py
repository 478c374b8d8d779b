"""All nine YC-Bench games with the real package, played by a fixed rule, twice, and not at all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from hermes_rl.benchmarks.yc_bench.task_set import YCBench
from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.results import RolloutResult
from tests.proof import Proof

PROOF = "yc-bench"

pytestmark = [pytest.mark.scale, pytest.mark.timeout(7200)]

PLAYS = 2
POLICY = (Path(__file__).parents[1] / "data/yc_policy.py").read_text()
WORLD = (
    "yc-bench market browse --limit 1000 | grep -v _id | sha256sum; "
    "yc-bench employee list | grep -v _id | sha256sum"
)
WAIT = "yc-bench sim resume"
PLAY = f"cat > play.py <<'END'\n{POLICY}\nEND\npython3 play.py"
LEDGER = "yc-bench finance ledger | grep -v 'id\":' | sha256sum"
"""Ids differ from play to play; everything else may not."""


def player(*commands: str) -> ScriptedModel:
    turns = [call("terminal", {"command": command, "timeout": 3500}) for command in commands]
    return ScriptedModel(replay(turns))


async def play(model: ScriptedModel, *, times: int) -> dict[str, list[RolloutResult]]:
    """Play every game so many times, two games at once."""
    games = list(await YCBench().load())
    assert len(games) == 9
    plays: dict[str, list[RolloutResult]] = {game.id: [] for game in games}
    config = EnvConfig(enabled_toolsets=["terminal"], terminal_timeout=3500, max_eval_workers=2)
    async with (
        RolloutEngine(config, model=model) as engine,
        engine.run(games, attempts=times) as results,
    ):
        async for result in results:
            plays[result.task_id].append(result)
    return plays


def story(result: RolloutResult) -> dict[str, Any]:
    """Return what must not differ between two plays of one game."""
    assert result.failure is None, result.failure
    assert result.agent is not None
    assert result.reward is not None
    assert result.reward.flags == ()
    said = [
        orjson.loads(m["content"])["output"] for m in result.agent.messages if m["role"] == "tool"
    ]
    return {"said": said, "score": result.score, **result.reward.evidence}


def line(game: str, told: dict[str, Any]) -> str:
    return (
        f"{game:16s} {told['outcome']:9s} score {told['score']:.6f}  "
        f"funds ${told['funds_cents'] / 100:,.2f}  to {told['sim_time'][:10]}"
    )


async def test_nine_games_have_equal_worlds_and_scores_in_two_plays(proof: Proof) -> None:
    began_s = time.monotonic()
    results = await play(player(WORLD, PLAY, LEDGER), times=PLAYS)
    worlds = set()
    for game, plays in results.items():
        first, *others = [story(result) for result in plays]
        assert others == [first] * (PLAYS - 1), game
        assert first["outcome"] in ("survived", "bankrupt"), game
        world, _, ledger = first["said"]
        worlds.add(world)
        proof(f"{line(game, first)}  world {world[:8]}  ledger {ledger[:8]}")
    assert len(worlds) == 9
    proof(f"nine games, each played {PLAYS} times: {time.monotonic() - began_s:.0f} s")


async def test_nine_companies_that_only_wait_go_bankrupt_and_score_0(proof: Proof) -> None:
    for game, (result,) in (await play(player(WAIT, WAIT), times=1)).items():
        told = story(result)
        assert (told["outcome"], told["score"]) == ("bankrupt", 0.0), game
        proof(line(game, told))
