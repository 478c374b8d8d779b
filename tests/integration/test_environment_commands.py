"""Environments by command, as a user runs them: real processes, real sandboxes, old files too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest.importorskip("atroposlib", reason="needs hermes_rl[atropos]")

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).parents[2]
ENV = {
    **os.environ,
    "WANDB_MODE": "disabled",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

OLD_ENVIRONMENT = """
from typing import Any, Dict, List, Optional, Tuple

from atroposlib.envs.server_handling.server_manager import APIServerConfig

from environments.agent_loop import AgentResult
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig
from environments.tool_context import ToolContext


class OldConfig(HermesAgentEnvConfig):
    greeting: str = "hello"


class OldEnv(HermesAgentBaseEnv):
    name = "old-env"
    env_config_cls = OldConfig
    sync_reward = SYNC

    @classmethod
    def config_init(cls) -> Tuple[OldConfig, List[APIServerConfig]]:
        return OldConfig(enabled_toolsets=["terminal", "file"], max_agent_turns=3), [
            APIServerConfig(base_url="http://127.0.0.1:1/v1", model_name="m", server_type="openai")
        ]

    async def setup(self):
        self.iter = 0

    async def get_next_item(self):
        self.iter += 1
        return {"instruction": f"Say {self.config.greeting} {self.iter}"}

    def format_prompt(self, item: Dict[str, Any]) -> str:
        return item["instruction"]

    async def compute_reward(self, item, result: AgentResult, ctx: ToolContext) -> float:
        test = ctx.terminal("echo out > /tmp/$$.txt && cat /tmp/$$.txt && rm /tmp/$$.txt")
        if test["exit_code"] != 0:
            return 0.0
        ctx.write_file("note.txt", item["instruction"])
        content = ctx.read_file("note.txt")
        return 1.0 if content.get("content") == item["instruction"] else 0.5

    async def evaluate(self, *args, **kwargs):
        pass


if __name__ == "__main__":
    OldEnv.cli()
"""


def hermes(*words: str, cwd: Path, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=ENV, capture_output=True, text=True, timeout=timeout
    )


def old_file(folder: Path, *, sync: bool) -> str:
    path = folder / "old_env.py"
    path.write_text(OLD_ENVIRONMENT.replace("SYNC", str(sync)))
    return str(path)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_old_environment_file_runs_unchanged_with_sync_reward(tmp_path: Path) -> None:
    done = hermes(
        "-m", "hermes_rl", "process", old_file(tmp_path, sync=True),
        "--env.total_steps", "3", "--openai.server_type", "nop",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = rows(tmp_path / "data/old-env.jsonl")
    assert [row["scores"] for row in written] == [[1.0]] * 3


def test_the_same_by_flag_and_with_a_field_of_its_own_from_yaml(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(
        "env:\n  greeting: good day\n  sync_reward: true\n  total_steps: 1\n"
        "openai:\n  - server_type: nop\n"
    )
    done = hermes(
        "-m", "hermes_rl", "process", old_file(tmp_path, sync=False), "--config", "c.yaml",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = rows(tmp_path / "data/old-env.jsonl")
    assert "good day" in json.dumps(row["messages"])


def test_with_await_it_needs_no_flag(tmp_path: Path) -> None:
    path = Path(old_file(tmp_path, sync=False))
    awaited = path.read_text().replace("        ctx.", "        await ctx.")
    path.write_text(awaited.replace("= ctx.", "= await ctx."))
    assert path.read_text().count("await ctx.") == 3
    done = hermes(
        "-m", "hermes_rl", "process", str(path),
        "--env.total_steps", "2", "--openai.server_type", "nop",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [row["scores"] for row in rows(tmp_path / "data/old-env.jsonl")] == [[1.0]] * 2


def test_a_forgotten_await_is_an_error_with_the_line_to_fix(tmp_path: Path) -> None:
    done = hermes(
        "-m", "hermes_rl", "process", old_file(tmp_path, sync=False),
        "--env.total_steps", "1", "--env.group_failures", "drop", "--openai.server_type", "nop",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 4
    assert "old_env.py" in done.stderr
    assert "await ctx.terminal" in done.stderr
    assert "sync_reward" in done.stderr


def test_a_misspelt_field_of_an_old_yaml_is_named_with_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("env:\n  max_agent_turn: 3\n")
    done = hermes(
        "-m", "hermes_rl", "process", old_file(tmp_path, sync=True), "--config", "c.yaml",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert "max_agent_turn" in done.stderr
    assert "max_agent_turns" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_tokenizer_out_of_reach_stops_before_the_first_rollout_and_none_does_without(
    tmp_path: Path,
) -> None:
    (tmp_path / "c.yaml").write_text(
        "env:\n  total_steps: 1\n  tokenizer_name: ./no-such-tokenizer\n"
        "openai:\n  server_type: nop\n"
    )
    words = ("-m", "hermes_rl", "process", old_file(tmp_path, sync=True), "--config", "c.yaml")
    done = hermes(*words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "env.tokenizer_name: ./no-such-tokenizer cannot be loaded" in done.stderr
    assert "A rollout" not in done.stderr
    done = hermes(*words, "--env.tokenizer_name", "none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (row,) = rows(tmp_path / "data/old-env.jsonl")
    assert (row["scores"], row["tokens"]) == ([1.0], [[]])


def test_a_script_evaluates_its_items_into_a_run_directory(tmp_path: Path) -> None:
    script = str(ROOT / "tests/integration/greeting_env.py")
    done = hermes(script, "evaluate", "--env.data_dir_to_save_evals", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/results.jsonl").exists()
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert "atropos|greeting_eval|0" in metrics["results"]


@pytest.mark.parametrize("name", ["greeting_env.py", "greeting_env.py:GreetingEnv"])
def test_evaluate_takes_an_environment_and_runs_its_own_evaluation(
    name: str, tmp_path: Path
) -> None:
    spec = str(ROOT / "tests/integration" / name)
    words = ("-m", "hermes_rl", "evaluate", spec)
    done = hermes(*words, "--env.data_dir_to_save_evals", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert "atropos|greeting_eval|0" in metrics["results"]
    done = hermes(*words, "--resume", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_an_old_file_evaluates_by_the_command(tmp_path: Path) -> None:
    path = old_file(tmp_path, sync=True)
    done = hermes("-m", "hermes_rl", "evaluate", path, "--nop", cwd=tmp_path)
    assert done.returncode == 4, "its evaluate() does nothing, which is said"
    assert "OldEnv.evaluate() recorded nothing" in done.stderr


def test_an_evaluate_that_records_nothing_exits_4_and_says_so(tmp_path: Path) -> None:
    done = hermes(old_file(tmp_path, sync=True), "evaluate", "--help", cwd=tmp_path)
    assert "environments" in done.stderr, "run as a plain script, an old file finds no old names"
    driver = tmp_path / "driver.py"
    driver.write_text(
        textwrap.dedent("""
        from hermes_rl.atropos.old_names import install_old_names
        install_old_names()
        from old_env import OldEnv
        OldEnv.cli()
        """)
    )
    done = hermes("driver.py", "evaluate", "--openai.server_type", "nop", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert "evaluate_items" in done.stderr


def test_ctrl_c_keeps_whole_lines_and_resume_finishes(tmp_path: Path) -> None:
    words = [
        sys.executable, str(ROOT / "tests/integration/greeting_env.py"), "process",
        "--env.total_steps", "400", "--env.max_num_workers", "2",
    ]  # fmt: skip
    process = subprocess.Popen(words, cwd=tmp_path, env=ENV, stderr=subprocess.DEVNULL)
    path = tmp_path / "data/greeting.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (path.exists() and path.stat().st_size > 2000):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=90) == 130
    before = len(rows(path))
    assert 0 < before < 400
    total = str(before + 5)
    words[words.index("400")] = total
    done = hermes(*words[1:], "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(rows(path)) == before + 5


def test_every_task_set_is_an_environment(tmp_path: Path) -> None:
    done = hermes(
        "-m", "hermes_rl", "process", "terminal-test", "--openai.server_type", "oracle",
        "--env.total_steps", "4", "--env.group_size", "2", "--env.task_filter", "split=variants",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert all(row["scores"] == [1.0, 1.0] for row in rows(tmp_path / "data/terminal-test.jsonl"))


def test_wandb_offline_has_figures_and_readable_rollouts_and_no_secret(tmp_path: Path) -> None:
    secret = "sk-never-to-be-seen"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hermes_rl", "process", "terminal-test", "--env.seed", "5"),
            *("--openai.server_type", "oracle", "--openai.api_key", secret),
            *("--env.total_steps", "3", "--env.min_items_sent_before_logging", "2"),
        ],
        cwd=tmp_path,
        env={**ENV, "WANDB_MODE": "offline", "OPENAI_API_KEY": secret},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    recorded = log.read_bytes()
    for name in ("train/reward_mean", "rollouts/tool_errors", "rollouts/turns", "max_agent_turns"):
        assert name.encode() in recorded, name
    tables = [
        json.loads(path.read_text())
        for path in tmp_path.glob("wandb/offline-run-*/files/media/table/train/*.table.json")
    ]
    shown = [row for table in tables for row in table["data"]]
    assert len(shown) == 3, "two logged together, the last at the end"
    for text, score in shown:
        assert text.startswith("[user]\n")
        assert "[assistant]\n-> terminal(" in text
        assert score == 1.0
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    assert secret not in done.stdout + done.stderr


def test_an_unknown_environment_lists_the_nearest(tmp_path: Path) -> None:
    done = hermes("-m", "hermes_rl", "serve", "terminal-tst", cwd=tmp_path)
    assert done.returncode == 2
    assert "Did you mean 'terminal-test'" in done.stderr


@pytest.mark.parametrize("script", ["terminal_test_env", "hermes_swe_env"])
def test_scripts_run_directly_and_explain_themselves(script: str, tmp_path: Path) -> None:
    path = ROOT / f"hermes_rl/envs/{script}/{script}.py"
    done = hermes(str(path), "process", "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "--resume" in done.stdout
