"""All nine YC-Bench games with the real package, each played twice by a fixed rule."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.benchmarks.yc_bench.task_set import Game, YCBench
from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.model.scripted import ScriptedModel, call, replay
from hermes_rl.results import RolloutResult

pytestmark = [pytest.mark.scale, pytest.mark.timeout(7200)]

PLAYS = 2
POLICY = (Path(__file__).parents[1] / "data/yc_policy.py").read_text()
WORLD = (
    "yc-bench market browse --limit 1000 | grep -v _id | sha256sum; "
    "yc-bench employee list | grep -v _id | sha256sum"
)
PLAY = f"cat > play.py <<'END'\n{POLICY}\nEND\npython3 play.py"
LEDGER = "yc-bench finance ledger | grep -v _id | sha256sum"


def player() -> ScriptedModel:
    commands = (WORLD, PLAY, LEDGER)
    turns = [call("terminal", {"command": command, "timeout": 3500}) for command in commands]
    return ScriptedModel(replay(turns))


async def play(games: list[Game]) -> list[RolloutResult]:
    config = EnvConfig(enabled_toolsets=["terminal"], terminal_timeout=3500, max_eval_workers=2)
    async with (
        RolloutEngine(config, model=player()) as engine,
        engine.run(games, attempts=PLAYS) as results,
    ):
        return [result async for result in results]


def story(result: RolloutResult) -> dict[str, Any]:
    """What must not differ between two plays of one game."""
    assert result.failure is None, result.failure
    assert result.agent is not None
    assert result.reward is not None
    world, ended, ledger = [m["content"] for m in result.agent.messages if m["role"] == "tool"]
    return {
        "world": world,
        "ended": ended,
        "ledger": ledger,
        "score": result.score,
        **result.reward.evidence,
    }


async def test_nine_games_have_equal_worlds_and_scores_in_two_plays() -> None:
    began_s = time.monotonic()
    games = list(await YCBench().load())
    assert len(games) == 9
    results = await play(games)
    assert len(results) == 9 * PLAYS
    stories: dict[str, list[dict[str, Any]]] = {game.id: [] for game in games}
    for result in results:
        assert result.reward is not None, result.failure
        assert result.reward.flags == ()
        stories[result.task_id].append(story(result))
    for game, plays in stories.items():
        first = plays[0]
        assert plays == [first] * PLAYS, game
        assert first["outcome"] in ("survived", "bankrupt"), game
        print(
            f"{game:18s} {first['outcome']:9s} score {first['score']:.6f}  "
            f"funds ${first['funds_cents'] / 100:,.0f}  to {first['sim_time'][:10]}"
        )
    assert len({plays[0]["world"] for plays in stories.values()}) == 9
    print(f"nine games, each played {PLAYS} times: {time.monotonic() - began_s:.0f} s")
