"""terminal-test in real sandboxes: what solves nothing scores nothing, also half-done work."""

from pathlib import Path

import pytest

from hermes_rl.config import EnvConfig
from hermes_rl.engine import RolloutEngine
from hermes_rl.envs.terminal_test_env.task_set import TerminalTest
from hermes_rl.evaluation import evaluate
from hermes_rl.model.scripted import ScriptedModel, call, random_model, replay
from hermes_rl.runlog.reader import read_run, read_transcript

CONFIG = EnvConfig(enabled_toolsets=["terminal"], terminal_backend="local", max_eval_workers=8)


async def test_random_commands_score_nothing(tmp_path: Path) -> None:
    async with RolloutEngine(CONFIG, model=random_model(seed=1)) as engine:
        summary = await evaluate(
            TerminalTest(), engine, env=CONFIG, run_dir=tmp_path, model_names=["random"]
        )
    assert summary.complete
    assert summary.headline.rollouts >= 44
    assert summary.headline.mean_reward == 0.0
    recorded = read_run(tmp_path)
    assert all(record.tool_calls for record in recorded.records.values())
    transcript = read_transcript(tmp_path, "text-01", 0)
    assert any("exit_code" in str(m["content"]) for m in transcript.messages if m["role"] == "tool")


@pytest.mark.parametrize(
    ("command", "reward"),
    [
        ("echo 579 > ~/answer.txt", 1.0),
        ("printf 579 > $HOME/answer.txt", 1.0),
        ("echo 123 + 456 = 579 > ~/answer.txt", 0.5),
        ("echo 580 > ~/answer.txt", 0.0),
        ("echo 579 > ~/anwser.txt", 0.0),
        ("mkdir ~/answer.txt", 0.0),
        ("ln -s /etc/hostname ~/answer.txt", 0.0),
        ("head -c 20000000 /dev/zero > ~/answer.txt", 0.0),
        ("printf '\\377579' > ~/answer.txt", 0.5),
        ("echo 579 > ~/answer.txt; exit 3", 1.0),
    ],
)
async def test_the_reward_is_a_fact_about_the_file(command: str, reward: float) -> None:
    (task,) = [task for task in await TerminalTest().load() if task.id == "answer"]
    model = ScriptedModel(replay([call("terminal", {"command": command})]))
    async with RolloutEngine(CONFIG, model=model) as engine:
        result = await engine.rollout(task)
    assert result.status == "finished", result.failure
    assert result.score == reward
