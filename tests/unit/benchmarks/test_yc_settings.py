"""yc-bench's settings are the same however it is started, and its games can be chosen."""

from __future__ import annotations

import importlib.resources
from typing import Any

import pytest
import yaml

from hermes_rl.benchmarks.yc_bench.settings import YCBenchConfig
from hermes_rl.benchmarks.yc_bench.task_set import YCBench
from hermes_rl.benchmarks.yc_bench.yc_bench_env import YCBenchEvalConfig, YCBenchEvalEnv
from hermes_rl.cli.settings import EvaluateSettings, evaluate_settings
from hermes_rl.config_sources import split_flags
from hermes_rl.errors import ConfigError


def settings_of(*flags: str) -> EvaluateSettings:
    return evaluate_settings(
        tasks="yc-bench",
        config_path=None,
        resume=None,
        server_type="nop",
        flags=split_flags(flags)[1],
    )


def test_name_environment_and_yaml_have_the_settings_of_published_scores() -> None:
    text = importlib.resources.files("hermes_rl.benchmarks.yc_bench").joinpath("default.yaml")
    in_yaml: dict[str, Any] = yaml.safe_load(text.read_text())["env"]
    by_class, (server,) = YCBenchEvalEnv.config_init()
    assert server.server_type == "openai"
    for made in (settings_of().env, by_class, YCBenchConfig(**in_yaml)):
        assert made.enabled_toolsets == ["terminal"]
        assert (made.terminal_backend, made.terminal_timeout) == ("local", 60)
        assert (made.max_agent_turns, made.agent_temperature) == (200, 0.0)
        assert made.max_eval_workers == 1
    YCBenchEvalConfig(**in_yaml)


def test_games_are_chosen_by_flags() -> None:
    chosen = settings_of("--env.presets", "hard,nightmare", "--env.seeds", "7")
    tasks = chosen.source.make(chosen.env)
    assert isinstance(tasks, YCBench)
    assert (tasks._presets, tasks._seeds) == (("hard", "nightmare"), (7,))
    usual = settings_of()
    tasks = usual.source.make(usual.env)
    assert isinstance(tasks, YCBench)
    assert (tasks._presets, tasks._seeds) == (("fast_test", "medium", "hard"), (1, 2, 3))


@pytest.mark.parametrize(
    ("flag", "value"),
    [("presets", "[]"), ("seeds", "[]"), ("seeds", "-1"), ("seeds", str(2**31)), ("seeds", "one")],
)
def test_games_that_cannot_be_are_errors_that_name_the_field(flag: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"env\.{flag}"):
        settings_of(f"--env.{flag}", value)
