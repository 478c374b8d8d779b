"""YC-Bench with the real package, played by scripts in local sandboxes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.benchmarks.yc_bench.task_set import KEPT_TURNS, SHOWN_TURNS, Game, YCBench
from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.errors import UnknownName
from hermes_rl.model.scripted import ScriptedModel, Turn, call, nop_model, replay, say
from hermes_rl.results import RolloutResult
from hermes_rl.runlog.reader import read_run
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.types import Message

from .evaluate_process import environment, outcomes

POLICY = (Path(__file__).parents[1] / "data/yc_policy.py").read_text()
PLAY = f"cat > play.py <<'END'\n{POLICY}\nEND\npython3 play.py"
WORLD = (
    "yc-bench market browse --limit 500 | grep -v _id | sha256sum; "
    "yc-bench employee list | grep -v _id | sha256sum"
)

pytestmark = pytest.mark.timeout(300)


def model_of(*commands: str) -> ScriptedModel:
    turns = [call("terminal", {"command": command, "timeout": 280}) for command in commands]
    return ScriptedModel(replay(turns))


async def games(presets: list[str], seeds: list[int] | None = None) -> list[Game]:
    return list(await YCBench(presets, seeds or [1]).load())


async def run(model: ScriptedModel, tasks: list[Game], *, attempts: int = 1) -> list[RolloutResult]:
    config = EnvConfig(
        enabled_toolsets=["terminal"],
        terminal_timeout=280,
        max_agent_turns=200,
        max_eval_workers=2,
    )
    async with (
        RolloutEngine(config, model=model) as engine,
        engine.run(tasks, attempts=attempts) as results,
    ):
        return [result async for result in results]


def outputs(result: RolloutResult) -> list[str]:
    assert result.agent is not None, result.failure
    return [str(m["content"]) for m in result.agent.messages if m["role"] == "tool"]


def evidence(result: RolloutResult) -> Any:
    assert result.reward is not None, result.failure
    return result.reward.evidence


async def test_a_game_reaches_its_horizon_in_the_same_world_with_the_same_score_twice() -> None:
    first, second = await run(model_of(WORLD, PLAY), await games(["fast_test"]), attempts=2)
    assert outputs(first) == outputs(second)
    assert evidence(first) == evidence(second)
    assert evidence(first)["outcome"] == "survived"
    assert first.reward is not None
    assert first.reward.flags == ()
    assert first.score == second.score
    assert 0.5 < first.score < 1.0


async def test_a_company_that_goes_bankrupt_scores_0_even_if_it_plays_on_and_earns() -> None:
    wait = "yc-bench sim resume"
    earn = f"{PLAY} 1; {wait}; {wait}"
    (result,) = await run(model_of(wait, earn), await games(["fast_test"]))
    assert '"bankrupt": true' in outputs(result)[0].replace("\\", "")
    assert evidence(result)["funds_cents"] > 0
    assert evidence(result)["outcome"] == "bankrupt"
    assert result.score == 0.0
    assert result.reward is not None
    assert result.reward.flags == ()


async def test_doing_nothing_is_no_survival() -> None:
    (result,) = await run(nop_model(), await games(["fast_test"]))
    assert evidence(result)["outcome"] == "incomplete"
    assert result.score < 0.1


async def test_what_is_sent_to_a_sandbox_is_packed_once_and_holds_no_compiled_files() -> None:
    (first,), (second,) = await games(["fast_test"]), await games(["fast_test"], [2])
    archive = first.package.archive
    assert (archive, archive.stat().st_size < 16 << 20) == (second.package.archive, True)
    made = archive.stat().st_mtime_ns
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert "./yc_bench/cli/__init__.py" in names
    assert not [name for name in names if "__pycache__" in name]
    await games(["fast_test"])
    assert archive.stat().st_mtime_ns == made


async def test_worlds_differ_between_seeds_and_presets() -> None:
    tasks = [*await games(["fast_test", "medium"]), *await games(["fast_test"], [2])]
    results = await run(model_of(WORLD), tasks)
    assert len({outputs(result)[0] for result in results}) == 3


async def test_a_command_that_was_imported_once_keeps_its_exit_codes_and_streams() -> None:
    (result,) = await run(
        model_of(
            "yc-bench task accept --task-id nope; echo rc=$?",
            "yc-bench market browse --domain nope 2>/dev/null; echo rc=$?",
            "yc-bench scratchpad write --content 'a b'; yc-bench scratchpad read",
            "for i in 1 2 3 4; do yc-bench company status >/dev/null & done; wait; echo all",
        ),
        await games(["fast_test"]),
    )
    accepted, browsed, notes, at_once = outputs(result)
    assert "Invalid UUID" in accepted
    assert "rc=1" in accepted
    assert "rc=2" in browsed
    assert "a b" in notes
    assert "all" in at_once


async def test_a_long_game_is_shown_its_latest_turns_and_the_result_counts_how_often() -> None:
    shown: list[int] = []

    def next_turn(messages: Sequence[Message]) -> Turn:
        shown.append(sum(message["role"] == "assistant" for message in messages))
        return call("terminal", {"command": "true"}) if len(shown) <= 100 else say("Enough.")

    (result,) = await run(ScriptedModel(next_turn), await games(["fast_test"]))
    assert result.agent is not None, result.failure
    assert max(shown) == SHOWN_TURNS
    assert shown[SHOWN_TURNS + 1] == KEPT_TURNS
    assert result.agent.counters["compactions"] == 2
    assert len(outputs(result)) == 100


async def test_money_that_is_not_in_the_ledger_is_flagged() -> None:
    forge = (
        "python3 - <<'END'\nimport glob, os, sqlite3\n"
        "db = sqlite3.connect(os.path.expanduser('~/.yc-bench/company.db'))\n"
        "db.execute('UPDATE companies SET funds_cents = 999999999'); db.commit()\nEND"
    )
    (result,) = await run(model_of(forge), await games(["fast_test"]))
    assert result.reward is not None
    assert any("ledger" in flag for flag in result.reward.flags)


@pytest.mark.parametrize(
    "ruin",
    [
        "rm -rf ~/.yc-bench",
        "head -c 100000 /dev/urandom > ~/.yc-bench/company.db",
    ],
)
async def test_an_agent_that_destroys_the_books_scores_0(ruin: str) -> None:
    (result,) = await run(model_of(ruin), await games(["fast_test"]))
    assert result.status == "finished", result.failure
    assert result.score == 0.0
    assert evidence(result)["outcome"] == "destroyed"


async def test_a_clock_that_was_set_to_the_horizon_is_flagged() -> None:
    forge = (
        "python3 - <<'END'\nimport os, sqlite3\n"
        "db = sqlite3.connect(os.path.expanduser('~/.yc-bench/company.db'))\n"
        "db.execute('UPDATE sim_state SET sim_time = horizon_end'); db.commit()\nEND"
    )
    (result,) = await run(model_of(forge), await games(["fast_test"]))
    assert result.reward is not None
    assert any("salaries" in flag for flag in result.reward.flags)


@pytest.mark.parametrize(
    ("says", "problem"),
    [("echo 3.9", r"needs Python 3\.11 or newer .* has 3\.9"), ("exit 127", "needs python3")],
)
async def test_a_sandbox_without_a_fitting_python_says_what_is_needed(
    says: str, problem: str, tmp_path: Path
) -> None:
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o755)

    class OtherPython(Game):
        sandbox = SandboxSpec(env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})

    (game,) = await games(["fast_test"])
    other = OtherPython(preset=game.preset, seed=game.seed, package=game.package)
    (result,) = await run(nop_model(), [other])
    assert result.failure is not None
    assert re.search(problem, result.failure.message)


async def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'fast_test'"):
        await YCBench(["fast_tst"]).load()


async def test_the_prompt_names_what_the_installed_package_has() -> None:
    (game,) = await games(["hard"])
    text = str(game.prompt[0]["content"])
    for domain in game.package.domains:
        assert domain in text
    for name in game.package.commands:
        offered = name not in ("run", "start", "sim init", "task cancel")
        assert (f"yc-bench {name}" in text) is offered
    assert "7 employees" in text


def test_the_shell_script_plays_the_chosen_game_and_reports_its_mean_reward(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "benchmarks/yc_bench/run_eval.sh"
    chosen = ("--env.presets", "fast_test", "--env.seeds", "4")
    done = subprocess.run(
        ["bash", script, "--nop", *chosen, "--env.data_dir_to_save_evals", "run"],
        cwd=tmp_path,
        env=environment(PYTHON=sys.executable),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    recorded = read_run(tmp_path / "run")
    assert outcomes(recorded) == {
        ("fast_test-seed4", 0): ("finished", pytest.approx(0.0751, abs=1e-4))
    }
    assert recorded.header.score_config["env.max_agent_turns"] == 200
    assert "fast_test  0.000 [0.000, 0.793]  0 of 1  mean reward 0.075" in done.stdout
