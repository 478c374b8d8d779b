import os
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.config import AFFECTS_SCORE, EnvConfig, ServerConfig
from hermes_rl.config_layers import (
    REDACTED,
    idle_settings,
    layer_of_models,
    public_config,
    recorded_layers,
    resolve,
    score_config,
    with_reasoning,
)
from hermes_rl.config_sources import (
    Layer,
    flag_layer,
    load_dotenv,
    read_yaml,
    split_flags,
    yaml_layer,
)
from hermes_rl.errors import ConfigError


def from_flags(*words: str, below: Layer | None = None) -> tuple[EnvConfig, Any]:
    rest, flags = split_flags(words)
    assert rest == []
    return resolve(EnvConfig, [*([below] if below else []), flag_layer(flags)])


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--env.max_agent_turns", "7"], "max_agent_turns", 7),
        (["--env.max_agent_turns=7"], "max_agent_turns", 7),
        (["--env.max_num_workers", "-1"], "max_num_workers", -1),
        (["--env.total_steps=-1"], "total_steps", -1),
        (["--env.agent_temperature", "0.5"], "agent_temperature", 0.5),
        (["--env.agent_temperature", "0"], "agent_temperature", 0.0),
        (["--env.use_wandb", "false"], "use_wandb", False),
        (["--env.use_wandb=no"], "use_wandb", False),
        (["--env.parallel_tool_calls"], "parallel_tool_calls", True),
        (["--env.parallel_tool_calls", "--env.seed", "3"], "parallel_tool_calls", True),
        (
            ["--env.task_filter", "fix-git,git-multibranch"],
            "task_filter",
            ["fix-git", "git-multibranch"],
        ),
        (["--env.task_filter", " a , b ,"], "task_filter", ["a", "b"]),
        (["--env.task_filter", '["a,b", "c"]'], "task_filter", ["a,b", "c"]),
        (["--env.task_filter", "null"], "task_filter", None),
        (["--env.task_filter", ""], "task_filter", []),
        (
            ["--env.extra_body", '{"provider": {"sort": "price"}}'],
            "extra_body",
            {"provider": {"sort": "price"}},
        ),
        (["--env.extra_body", "null"], "extra_body", None),
        (["--env.max_reasoning_tokens", "None"], "max_reasoning_tokens", None),
        (["--env.system_prompt", "null"], "system_prompt", None),
        (["--env.system_prompt", "123"], "system_prompt", "123"),
        (["--env.system_prompt", '"null"'], "system_prompt", "null"),
        (["--env.system_prompt", "Be brief, please"], "system_prompt", "Be brief, please"),
        (["--env.system_prompt=--dashes"], "system_prompt", "--dashes"),
        (["--env.terminal_network", "none"], "terminal_network", "none"),
        (["--env.processes_at_reward", "kill"], "processes_at_reward", "kill"),
        (["--env.seed", "1", "--env.seed", "2"], "seed", 2),
    ],
)
def test_flag_values_are_json_or_plain_scalars(words: list[str], name: str, value: object) -> None:
    env, _ = from_flags(*words)
    assert getattr(env, name) == value
    assert name in env.model_fields_set


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--env.max_agent_trns", "7"],
            "Unknown field env.max_agent_trns.*Did you mean env.max_agent_turns",
        ),
        (
            ["--openai.modl_name", "x"],
            "Unknown field openai.0.modl_name.*openai.model_name|Did you mean",
        ),
        (
            ["--env.max_agent_turns", "many"],
            r"env.max_agent_turns \(from the command line\).*integer.*'many'",
        ),
        (["--env.max_agent_turns", "0"], "greater than or equal to 1"),
        (["--env.max_agent_turns"], "needs a value"),
        (["--env.max_agent_turns", "--env.seed"], "--env.max_agent_turns needs a value"),
        (["--env.extra_body", "{broken"], "wants a JSON object"),
        (["--env.task_filter", "[broken"], "wants a JSON list"),
        (["--env.0.seed", "1"], "is not a setting"),
        (["--env.", "1"], "is not a setting"),
        (["--openai.1.model_name", "x"], r"--openai.1.model_name: the configuration has 1 server"),
        (["--openai.server_type", "trl"], "vLLM or SGLang"),
        (["--openai.server_type", "opnai"], "'opnai'"),
        (
            ["--env.distribution", "default", "--env.enabled_toolsets", "terminal"],
            "distribution or enabled_toolsets",
        ),
    ],
)
def test_a_bad_flag_is_an_error_that_names_the_fix(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_flags(*words)


def test_every_fault_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        from_flags("--env.seeed", "1", "--env.attempts", "x")
    assert "env.seed" in str(caught.value)
    assert "env.attempts" in str(caught.value)


def test_other_words_are_left_for_the_argument_parser() -> None:
    rest, flags = split_flags(["a", "--env.seed", "1", "--display", "none", "--", "--env.x", "b"])
    assert rest == ["a", "--display", "none", "--", "--env.x", "b"]
    assert [str(flag) for flag in flags] == ["--env.seed"]


def test_a_secret_is_never_repeated_in_an_error() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(EnvConfig, [Layer(source="x", every_server={"api_key": ["sk-very-secret"]})])
    assert "sk-very-secret" not in str(caught.value)


def test_server_flags_apply_to_all_or_to_one() -> None:
    below = yaml_layer({"openai": [{"model_name": "a"}, {"model_name": "b"}]}, "f.yaml")
    _, servers = from_flags("--openai.timeout", "5", "--openai.1.model_name", "c", below=below)
    assert [(s.model_name, s.timeout) for s in servers] == [("a", 5), ("c", 5)]


def test_a_yaml_file_of_atropos_shape_is_read(tmp_path: Path) -> None:
    path = tmp_path / "default.yaml"
    path.write_text(
        "env:\n  enabled_toolsets: [terminal, file]\n  max_agent_turns: 60\n"
        "  tokenizer_name: some/tokenizer\n  use_wandb: false\n  task_filter: a, b\n"
        "  eval_handling: STOP_TRAIN\n  ensure_scores_are_not_same: false\n"
        "openai:\n  base_url: https://openrouter.ai/api/v1\n  model_name: m\n"
        "  server_type: openai\n  health_check: false\n  api_key: ''\n"
        "slurm: false\ntesting: false\n"
    )
    env, (server,) = resolve(EnvConfig, [read_yaml(path)])
    assert env.enabled_toolsets == ["terminal", "file"]
    assert env.task_filter == ["a", "b"]
    assert server.model_name == "m"
    assert server.api_key is None
    assert idle_settings(env) == [
        "env.ensure_scores_are_not_same",
        "env.eval_handling",
        "env.tokenizer_name",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("envv: {}", "Unknown section.*'envv'.*'env'"),
        ("- a", "must be a mapping"),
        ("env: [1]", "env must be a mapping"),
        ("openai: 3", "openai must be a mapping, or a list"),
        ("openai: [3]", "openai must be a mapping, or a list"),
        ("slurm: true", "slurm is not supported"),
        ("env: {a: ", "not valid YAML"),
        ("env: {max_agent_trns: 3}", r"env.max_agent_trns \(from --config .*\)\. Did you mean"),
    ],
)
def test_a_bad_yaml_file_is_a_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve(EnvConfig, [read_yaml(path)])


def test_an_empty_or_missing_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("")
    assert resolve(EnvConfig, [read_yaml(tmp_path / "empty.yaml")])[0].attempts == 1
    with pytest.raises(ConfigError, match=r"missing.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "missing.yaml")


def layers(**values: int) -> list[Layer]:
    """Layers in the order of the precedence table, each with the value given by its name."""
    names = ["command_defaults", "config_init", "command_must_win", "yaml", "flags"]
    made = []
    for name in names:
        env = {"max_agent_turns": values[name]} if name in values else {}
        made.append(Layer(source=name, env=env, counts_as_set=name != "command_defaults"))
    return made


@pytest.mark.parametrize(
    ("given", "wins", "is_set"),
    [
        ({}, 30, False),
        ({"command_defaults": 1}, 1, False),
        ({"command_defaults": 1, "config_init": 2}, 2, True),
        ({"config_init": 2, "command_must_win": 3}, 3, True),
        ({"config_init": 2, "command_must_win": 3, "yaml": 4}, 4, True),
        ({"yaml": 4, "flags": 5}, 5, True),
        ({"command_defaults": 1, "config_init": 2, "flags": 5}, 5, True),
    ],
)
def test_precedence(given: dict[str, int], wins: int, is_set: bool) -> None:
    env, _ = resolve(EnvConfig, layers(**given))
    assert env.max_agent_turns == wins
    assert ("max_agent_turns" in env.model_fields_set) is is_set


def test_servers_of_config_init_are_the_base_of_yaml_and_flags() -> None:
    init = layer_of_models(
        EnvConfig(), [ServerConfig(model_name="a", base_url="http://a")], "config_init()"
    )
    _, (server,) = resolve(EnvConfig, [init, yaml_layer({"openai": {"model_name": "b"}}, "f.yaml")])
    assert (server.model_name, server.base_url) == ("b", "http://a")
    listed = yaml_layer({"openai": [{"model_name": "c"}, {"model_name": "d"}]}, "f.yaml")
    _, servers = resolve(EnvConfig, [init, listed])
    assert [(s.model_name, s.base_url) for s in servers] == [("c", None), ("d", None)]


def test_terminal_env_is_the_default_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMINAL_ENV", "docker")
    assert EnvConfig().terminal_backend == "docker"
    assert "terminal_backend" not in EnvConfig().model_fields_set
    assert from_flags("--env.terminal_backend", "local")[0].terminal_backend == "local"
    monkeypatch.setenv("TERMINAL_ENV", "")
    assert EnvConfig().terminal_backend == "local"


def test_dotenv_fills_in_and_never_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text(
        "# keys\nOPENAI_API_KEY='sk-$a{b}'\nexport HERMES_T_B=two words\nHERMES_T_C=from-file\n"
        "HERMES_T_EMPTY=\n"
    )
    for name in ("OPENAI_API_KEY", "HERMES_T_B", "HERMES_T_EMPTY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HERMES_T_C", "from-shell")
    assert load_dotenv(tmp_path) == ["HERMES_T_B", "OPENAI_API_KEY"]
    assert os.environ["OPENAI_API_KEY"] == "sk-$a{b}"
    assert os.environ["HERMES_T_B"] == "two words"
    assert os.environ["HERMES_T_C"] == "from-shell"
    os.environ.pop("OPENAI_API_KEY")
    os.environ.pop("HERMES_T_B")
    assert load_dotenv(tmp_path / "nowhere") == []


def test_the_public_configuration_holds_no_secret() -> None:
    env = EnvConfig(
        extra_body={"max_tokens": 5, "headers": {"Authorization": "Bearer s1"}},
        backend_options={"registry": {"password": "s2"}, "token": "s3"},
    )
    server = ServerConfig(api_key="s4", base_url="https://user:s5@host/v1")
    text = str(public_config(env, [server])) + str(score_config(env, [server]))
    for number in range(1, 6):
        assert f"s{number}" not in text
    assert REDACTED in text
    assert public_config(env, [server])["env"]["extra_body"]["max_tokens"] == 5


def test_a_recorded_run_is_restored_whatever_the_defaults_are_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERMINAL_ENV", "docker")
    env = EnvConfig(max_agent_turns=5, tool_call_parser="hermes")
    servers = [ServerConfig(model_name="a", api_key="secret")]
    recorded = public_config(env, servers)
    monkeypatch.delenv("TERMINAL_ENV")
    restored, restored_servers = resolve(EnvConfig, [*recorded_layers(recorded, "run")])
    assert restored.terminal_backend == "docker"
    assert restored.model_fields_set == {"max_agent_turns", "tool_call_parser"}
    assert restored_servers[0].model_fields_set == {"model_name"}
    assert score_config(restored, restored_servers) == score_config(env, servers)


def test_score_fields_are_named_with_dots_and_tell_an_explicit_parser() -> None:
    plain = score_config(EnvConfig(), [ServerConfig()])
    explicit = score_config(EnvConfig(tool_call_parser="hermes"), [ServerConfig()])
    assert plain["env.max_agent_turns"] == 30
    assert plain["openai.0.model_name"] == "default"
    assert "env.max_eval_workers" not in plain
    assert {k for k in plain if plain[k] != explicit[k]} == {"env.tool_call_parser"}


def test_reasoning_settings_reach_requests_and_servers() -> None:
    env = EnvConfig(thinking_mode=True, reasoning_effort="high", extra_body={"a": 1})
    env, servers = with_reasoning(env, [ServerConfig(), ServerConfig(reasoning_effort="low")])
    assert env.extra_body == {"reasoning": {"enabled": True}, "a": 1}
    assert [server.reasoning_effort for server in servers] == ["high", "low"]


@pytest.mark.parametrize("model", [EnvConfig, ServerConfig])
def test_every_field_says_what_it_is(model: type[EnvConfig] | type[ServerConfig]) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_what_changes_scores_is_marked_and_what_does_not_is_not() -> None:
    marked = {n for n, f in EnvConfig.model_fields.items() if AFFECTS_SCORE in f.metadata}
    assert {"max_agent_turns", "terminal_backend", "seed", "max_token_length"} <= marked
    assert not {"max_eval_workers", "max_running_sandboxes", "use_wandb"} & marked
