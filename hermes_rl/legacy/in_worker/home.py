"""The private HERMES_HOME of a worker, and the environment hermes-agent is imported in.

Both are in place before the import: hermes-agent reads most of it once, then.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

__all__ = ["CACHE_DIRECTORIES", "ConfigurationError", "make_home", "set_environment"]

KEPT_VARIABLES = frozenset({"HERMES_ALLOW_PRIVATE_URLS"})
"""Of the HERMES_* variables of the caller: its decision, about addresses only."""
REMOVED_VARIABLES = frozenset({"BROWSER_CDP_URL"})
"""One browser behind one address would be one browser for all rollouts."""
CACHE_DIRECTORIES = ("cache", "image_cache", "audio_cache", "video_cache")
"""Where tools leave files that their results name."""

BROWSER_IDLE_S = 86_400
"""hermes-agent closes a browser after two idle minutes; a model may think longer. Ours are closed
when the rollout ends."""
EXTRACT_CHARS = 90_000
"""Of one page that web_extract returns; beyond it the rest is in a file."""
_OVERRIDES: dict[str, dict[str, Any]] = {
    "browser": {"auto_local_for_private_urls": False, "inactivity_timeout": BROWSER_IDLE_S},
    "security": {"allow_lazy_installs": False, "redact_secrets": False},
    "skills": {"inline_shell": False},
}
_DEFAULTS: dict[str, dict[str, Any]] = {"web": {"extract_char_limit": EXTRACT_CHARS}}
_REMOVED = {"browser": ("cdp_url",)}


class ConfigurationError(Exception):
    """The user's own home cannot be used; says how to mend it."""


def set_environment(environ: MutableMapping[str, str], home: Path) -> None:
    """Set the variables that hermes-agent reads when it is imported.

    Interactive flags (HERMES_INTERACTIVE, HERMES_EXEC_ASK, HERMES_GATEWAY_SESSION ...) go: with
    any of them it would ask a person or another model for approval.
    """
    for name in list(environ):
        if (name.startswith("HERMES_") and name not in KEPT_VARIABLES) or name in REMOVED_VARIABLES:
            del environ[name]
    environ["HERMES_HOME"] = str(home)
    environ["HERMES_REDACT_SECRETS"] = "false"
    environ["HERMES_DISABLE_LAZY_INSTALLS"] = "1"


def make_home(home: Path, source: Path | None) -> None:
    """Fill a private home: our settings over the user's, and the user's skills.

    Raises:
        ConfigurationError: ``source`` is no directory, or its config.yaml is no configuration.
    """
    import yaml  # Comes with hermes-agent.

    home.mkdir(parents=True, exist_ok=True)
    config: Any = {}
    if source is not None:
        if not source.is_dir():
            raise ConfigurationError(f"legacy_home {source} is no directory")
        if (source / "config.yaml").is_file():
            config = yaml.safe_load((source / "config.yaml").read_text("utf-8")) or {}
        if (source / "skills").is_dir():
            shutil.copytree(source / "skills", home / "skills", dirs_exist_ok=True)
    if not isinstance(config, dict):
        raise ConfigurationError(f"{source}/config.yaml must hold a mapping")
    (home / "config.yaml").write_text(yaml.safe_dump(_merged(config)), "utf-8")


def _merged(config: dict[str, Any]) -> dict[str, Any]:
    merged = dict(config)
    for name in {*_OVERRIDES, *_DEFAULTS, *_REMOVED}:
        section = merged.get(name)
        kept = dict(section) if isinstance(section, dict) else {}
        for key in _REMOVED.get(name, ()):
            kept.pop(key, None)
        merged[name] = {**_DEFAULTS.get(name, {}), **kept, **_OVERRIDES.get(name, {})}
    return merged


def has_skills(home: Path) -> bool:
    """Say whether there is a skill to list or view."""
    return any(os.scandir(home / "skills")) if (home / "skills").is_dir() else False
