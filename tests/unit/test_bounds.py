"""What is too large, too deep or unwritable is refused where it is given, by name."""

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hermes_rl.benchmarks.task_file import read_task_file
from hermes_rl.bounds import LONGEST_S, MOST_ROLLOUTS, shown, value_fault
from hermes_rl.config import EnvConfig
from hermes_rl.config_layers import resolve
from hermes_rl.config_sources import flag_layer, read_yaml, split_flags
from hermes_rl.errors import ConfigError, TaskError
from hermes_rl.evaluation_plan import check_size
from hermes_rl.sandbox import SandboxSpec
from hermes_rl.tasks import Deadlines, describe


def config_of(*words: str) -> EnvConfig:
    return resolve(EnvConfig, [flag_layer(split_flags(words)[1])])[0]


NUMBERS = [
    name
    for name, info in sorted(EnvConfig.model_fields.items())
    if {"int", "float"} & set(re.findall(r"\w+", str(info.annotation)))
]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [f"1{'0' * 24}", f"-1{'0' * 24}", "1e400", "nan"])
def test_no_field_takes_a_number_that_cannot_be_written(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"env\.{name} \(from the command line\)"):
        config_of(f"--env.{name}", value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--env.attempts", "1000000"], f"env.attempts .*{MOST_ROLLOUTS}, not '1000000'"),
        (["--env.task_timeout", "1e20"], f"env.task_timeout .*{LONGEST_S}, not '1e20'"),
        (["--env.seed", "9" * 20], r"env.seed .*lies outside -2\*\*63 to 2\*\*63"),
        (["--env.seed", "9" * 5000], r"env.seed .*999\.\.\.\.$"),
        (["--env.group_size", "0"], "env.group_size .*between 1 and 10000, not '0'"),
        (["--env.max_num_workers", "0"], "env.max_num_workers .*-1 stands for the default"),
        (["--env.system_prompt", "\udcff"], r"env.system_prompt .*not valid UTF-8, not '\\udcff'"),
        (
            ["--env.extra_body", '{"a":' * 100 + "1" + "}" * 100],
            "env.extra_body .*more than 64 levels deep",
        ),
        (["--env.extra_body", '{"a":' * 3000 + "1" + "}" * 3000], "extra_body wants a JSON object"),
        (["--env.rollout_server_url", "nonsense"], "rollout_server_url .*http://localhost:8000"),
        (["--env.rollout_server_url", "http://h:99999"], "rollout_server_url .*such as http"),
        (["--openai.timeout", "1e9"], "openai.0.timeout"),
        (["--openai.api_key", "\udcff"], "openai.0.api_key .*not valid UTF-8.$"),
    ],
)
def test_a_value_out_of_bounds_is_an_error_that_names_field_and_bound(
    words: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        config_of(*words)


def test_what_is_large_and_possible_is_taken() -> None:
    config = config_of(
        "--env.seed", str(2**63 - 1), "--env.attempts", "1000", "--env.terminal_timeout", "86400"
    )
    assert (config.seed, config.attempts, config.terminal_timeout) == (2**63 - 1, 1000, 86400)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env:\n  seed: 1\n  attempts: 2\n  seed: 3", "'seed' in line 4 stands in line 2 already"),
        ("env: {seed: 1, seed: 1}", "'seed' in line 1 stands in line 1"),
        ("env: {}\nenv: {}", "'env' in line 2"),
        ("env: {extra_body: {a: {b: 1, b: 2}}}", "'b' in line 1"),
        ("env: {seed: 2026-99-99}", "not valid YAML: month must be"),
        ("env: {seed: " + "9" * 5000 + "}", "not valid YAML: .*4300 digits"),
        ("env: " + "[" * 5000, "nested too deeply"),
        ("env: {seed: " + "[" * 100 + "]" * 100 + "}", "more than 64 levels deep"),
        ("env: &a {extra_body: *a}", "more than 64 levels deep"),
        ("env: {extra_body: {a: .nan}}", "not a finite number"),
        ('env: {system_prompt: "\\ud800"}', "not valid UTF-8"),
        ("env: {system_prompt: '" + "x" * (1 << 20) + "'}", "longer than 1 MiB"),
    ],
)
def test_a_yaml_file_hides_nothing(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_yaml(path)


def test_aliases_that_multiply_are_refused_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("env:\n  extra_body: {base: &b {x: 1}, more: {<<: *b, y: 2}, again: *b}\n")
    more = read_yaml(path).env["extra_body"]["more"]
    assert more == {"x": 1, "y": 2}
    levels = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    path.write_text("\n".join(levels))
    with pytest.raises(ConfigError, match="holds more than 100000 values"):
        read_yaml(path)


def test_merges_of_merges_do_not_multiply(tmp_path: Path) -> None:
    """As they did before PyYAML 6.0.4: ten times as long for each level."""
    path = tmp_path / "run.yaml"
    merged = (f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 40))
    path.write_text("\n  ".join(["env:", "a0: &a0 {x: 1, y: 2}", *merged]))
    assert read_yaml(path).env["a39"] == {"x": 1, "y": 2}


def test_a_large_mapping_merged_often_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    base = "{" + ", ".join(f"k{n}: 1" for n in range(3_000)) + "}"
    merged = (f"m{n}: {{<<: *base}}" for n in range(3_000))
    path.write_text("\n  ".join(["env:", f"base: &base {base}", *merged]))
    with pytest.raises(ConfigError, match="more than 100000 entries"):
        read_yaml(path)


def test_a_merge_keeps_what_the_mapping_itself_says(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "env:\n  extra_body:\n    a: &a {x: 1, y: 1}\n    b: &b {y: 2, z: 2}\n"
        "    c: {<<: [*a, *b], z: 3}\n    d: {w: 0, <<: *a, x: 4}\n"
    )
    body = read_yaml(path).env["extra_body"]
    assert (body["c"], body["d"]) == ({"x": 1, "y": 1, "z": 3}, {"w": 0, "x": 4, "y": 1})


@dataclass
class Limited:
    id: str = "limited"
    prompt: str = "Do it."
    deadlines: Deadlines = field(default_factory=Deadlines)
    sandbox: SandboxSpec = field(default_factory=SandboxSpec)
    metadata: dict[str, object] = field(default_factory=dict)

    async def reward(self, result: object, ctx: object) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Limited(deadlines=Deadlines(agent_s=1e20)), "deadlines.agent_s is 1e"),
        (Limited(deadlines=Deadlines(reward_s=math.inf)), "deadlines.reward_s is inf"),
        (Limited(deadlines=Deadlines(setup_s=-1)), "deadlines.setup_s is -1"),
        (Limited(deadlines=Deadlines(reward_margin_s=math.nan)), "reward_margin_s"),
        (Limited(sandbox=SandboxSpec(memory_mb=10**12)), "sandbox.memory_mb"),
        (Limited(sandbox=SandboxSpec(cpus=0)), "sandbox.cpus is 0"),
        (Limited(metadata={"seed": 10**30}), "metadata lies outside"),
        (Limited(metadata={3: 1}), "the names in its metadata must be text"),  # type: ignore[dict-item]
        (Limited(deadlines=Deadlines(agent_s="60")), "agent_s is '60'"),  # type: ignore[arg-type]
        (Limited(deadlines=Deadlines(reward_margin_s="1")), "margin_s"),  # type: ignore[arg-type]
        (Limited(sandbox=SandboxSpec(cpus="2")), "sandbox.cpus is '2'"),  # type: ignore[arg-type]
        (Limited(prompt=3), "must be text or a list of messages"),  # type: ignore[arg-type]
        (Limited(prompt=[3]), "must be text or a list of messages"),  # type: ignore[arg-type]
        (Limited(prompt="\udcff"), "prompt or metadata holds text that is not valid UTF-8"),
    ],
)
def test_a_task_with_impossible_limits_is_an_error_that_names_it(
    task: Limited, message: str
) -> None:
    with pytest.raises(TaskError, match=f"Task 'limited': .*{message}"):
        describe(task)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = " + "[" * 5000, "nested too deeply"),
        ("[agent]\ntimeout_sec = inf", "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = 1e20", "agent.timeout_sec"),
        ("[environment]\nmemory_mb = " + "9" * 5000, "not valid TOML"),
    ],
)
def test_a_task_file_with_impossible_values_is_an_error(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "task.toml").write_text(text)
    with pytest.raises(TaskError, match=message):
        read_task_file(tmp_path / "task.toml")


def test_a_run_has_a_most_of_rollouts() -> None:
    check_size(52, 1923)
    check_size(0, 100_000)
    with pytest.raises(ConfigError, match=r"env\.attempts: 52 tasks x 1924 .* at most 1923"):
        check_size(52, 1924)
    with pytest.raises(ConfigError, match=r"choose some by env\.task_filter"):
        check_size(100_001, 1)


def test_values_are_shown_in_one_short_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown("x" * 10_000)) < 200
    assert shown(int("9" * 4000) ** 2) == "that int"


def test_a_value_in_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert value_fault(endless) == "is nested more than 64 levels deep"
    assert value_fault({"a": [1, 2.5, True, None, "é"]}) is None
