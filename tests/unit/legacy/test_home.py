"""The private home of the workers, and the variables around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hermes_rl.legacy.in_worker.home import (
    ConfigurationError,
    has_skills,
    make_home,
    set_environment,
)


def config_of(home: Path) -> Any:
    return yaml.safe_load((home / "config.yaml").read_text())


def test_the_users_settings_are_kept_but_for_those_that_break_the_confinement(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    (source / "skills/one").mkdir(parents=True)
    (source / ".env").write_text("OPENAI_API_KEY=secret")
    user = {
        "web": {"search_backend": "searxng", "extract_char_limit": 5},
        "browser": {"cdp_url": "http://x", "allow_private_urls": True, "inactivity_timeout": 1},
        "security": {"redact_secrets": True},
        "skills": {"inline_shell": True},
    }
    (source / "config.yaml").write_text(yaml.safe_dump(user))
    make_home(tmp_path / "home", source)
    config = config_of(tmp_path / "home")
    assert config["web"] == {"search_backend": "searxng", "extract_char_limit": 5}
    assert config["browser"]["allow_private_urls"] is True
    assert "cdp_url" not in config["browser"]
    assert config["browser"]["inactivity_timeout"] > 3600
    assert config["browser"]["auto_local_for_private_urls"] is False
    assert config["security"] == {"redact_secrets": False, "allow_lazy_installs": False}
    assert config["skills"]["inline_shell"] is False
    assert has_skills(tmp_path / "home")
    assert not (tmp_path / "home/.env").exists()


def test_without_a_source_there_are_our_settings_and_no_skills(tmp_path: Path) -> None:
    make_home(tmp_path / "home", None)
    assert config_of(tmp_path / "home")["security"]["redact_secrets"] is False
    assert not has_skills(tmp_path / "home")


@pytest.mark.parametrize("text", ["- a list", "word"])
def test_a_configuration_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"config\.yaml must hold a mapping"):
        make_home(tmp_path / "home", tmp_path)


def test_a_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="legacy_home"):
        make_home(tmp_path / "home", tmp_path / "missing")


def test_interactive_flags_and_shared_browsers_go() -> None:
    environ = {
        "HERMES_INTERACTIVE": "1",
        "HERMES_EXEC_ASK": "1",
        "HERMES_GATEWAY_SESSION": "x",
        "HERMES_YOLO_MODE": "1",
        "HERMES_ALLOW_PRIVATE_URLS": "true",
        "BROWSER_CDP_URL": "http://x",
        "TAVILY_API_KEY": "kept",
    }
    set_environment(environ, Path("/private"))
    assert environ == {
        "HERMES_ALLOW_PRIVATE_URLS": "true",
        "HERMES_HOME": "/private",
        "HERMES_REDACT_SECRETS": "false",
        "HERMES_DISABLE_LAZY_INSTALLS": "1",
        "TAVILY_API_KEY": "kept",
    }
