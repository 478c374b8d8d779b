"""Where configuration values come from: a YAML file, command-line flags, ``.env``.

Each source becomes a :class:`Layer` of explicitly set values; :mod:`hermes_rl.config_layers`
merges them. A YAML file has the sections ``env`` (a mapping) and ``openai`` (a mapping, or a
list with one mapping per server), as Atropos' files have them. Flags are ``--env.<field> VALUE``,
``--openai.<field> VALUE`` for every server and ``--openai.0.<field> VALUE`` for one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from dotenv import dotenv_values

from hermes_rl.bounds import shown
from hermes_rl.config import ConfigModel, EnvConfig, ServerConfig
from hermes_rl.config_yaml import read_yaml_file
from hermes_rl.errors import ConfigError, UnknownName
from hermes_rl.types import JSONObject

__all__ = [
    "Flag",
    "Layer",
    "flag_layer",
    "load_dotenv",
    "read_yaml",
    "split_flags",
    "yaml_layer",
]

_FLAG = re.compile(r"--(env|openai)\.(?:(\d+)\.)?([A-Za-z_]\w*)\Z")
_SECTIONS = ("env", "openai")
_REFUSED_SWITCHES = ("slurm", "testing")
"""Top-level keys of Atropos' files that only mean something when true."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Layer:
    """The explicitly set values of one source.

    Attributes:
        source: Words for error messages, e.g. ``--config run.yaml``.
        env: Values of the environment configuration.
        every_server: Values that apply to every server.
        servers: One mapping per server where the source lists servers, else None.
        one_server: Values of single servers by index.
        counts_as_set: Whether the values are someone's choice, rather than defaults.
    """

    source: str
    env: Mapping[str, Any] = field(default_factory=dict)
    every_server: Mapping[str, Any] = field(default_factory=dict)
    servers: tuple[Mapping[str, Any], ...] | None = None
    one_server: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    counts_as_set: bool = True

    @property
    def names_a_model(self) -> bool:
        """Whether the source says anything about servers."""
        return bool(self.every_server or self.servers or self.one_server)


@dataclass(slots=True, frozen=True)
class Flag:
    """One ``--section.field value`` of a command line; ``value`` is None for a bare flag."""

    section: str
    index: int | None
    name: str
    value: str | None

    def __str__(self) -> str:
        """Return the flag as it was typed."""
        index = "" if self.index is None else f"{self.index}."
        return f"--{self.section}.{index}{self.name}"


def split_flags(arguments: Sequence[str]) -> tuple[list[str], list[Flag]]:
    """Separate dotted flags from the rest of a command line.

    A value follows after ``=`` or as the next word; a next word that begins with ``--`` is not
    taken, one that begins with a single ``-`` (a negative number) is.

    Returns:
        What is left for the argument parser, and the flags in order.

    Raises:
        ConfigError: A flag in one of our sections is not of the form ``--section.field``.
    """
    rest: list[str] = []
    flags: list[Flag] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if word == "--":
            return [*rest, word, *words], flags
        name, equals, value = word.partition("=")
        if not name.startswith(tuple(f"--{section}." for section in _SECTIONS)):
            rest.append(word)
            continue
        match = _FLAG.match(name)
        if match is None or (match[1] == "env" and match[2]):
            raise ConfigError(
                f"{name} is not a setting: write --env.<field>, --openai.<field>, or "
                "--openai.<number>.<field> for one of several servers."
            )
        given: str | None = value
        if not equals:
            given = words.pop(0) if words and not words[0].startswith("--") else None
        flags.append(Flag(match[1], int(match[2]) if match[2] else None, match[3], given))
    return rest, flags


def flag_layer(flags: Sequence[Flag], env_cls: type[ConfigModel] = EnvConfig) -> Layer:
    """Return the values of flags, read as the fields of ``env_cls`` want them.

    Raises:
        ConfigError: A flag lacks its value, or JSON was wanted and is malformed.
    """
    env: JSONObject = {}
    every: JSONObject = {}
    single: dict[int, JSONObject] = {}
    for flag in flags:
        if flag.section == "env":
            target, model = env, env_cls
        else:
            target = every if flag.index is None else single.setdefault(flag.index, {})
            model = ServerConfig
        target[flag.name] = _value_of(flag, model)
    return Layer(source="the command line", env=env, every_server=every, one_server=single)


def _value_of(flag: Flag, model: type[ConfigModel]) -> Any:
    """Return a flag's value: JSON or a plain scalar, as its field wants it."""
    text = flag.value
    if text is None:
        if model.takes(flag.name, bool):
            return True
        raise ConfigError(f"{flag} needs a value: {flag} VALUE or {flag}=VALUE.")
    if text in ("null", "None") and model.takes(flag.name, type(None)):
        return None
    if model.takes(flag.name, dict):
        return _json_of(flag, "object")
    if text.startswith("[") and model.takes(flag.name, list):
        return _json_of(flag, "list")
    if len(text) >= 2 and text[0] == text[-1] == '"' and model.takes(flag.name, str):
        return _json_of(flag, "string")
    return text


def _json_of(flag: Flag, kind: str) -> Any:
    """Decode a flag's JSON value."""
    try:
        return orjson.loads(flag.value or "")
    except orjson.JSONDecodeError as error:
        raise ConfigError(
            f"{flag} wants a JSON {kind}, which {shown(flag.value)} is not: {error}"
        ) from error


def read_yaml(path: Path) -> Layer:
    """Read a configuration file.

    Raises:
        ConfigError: The file cannot be read, is no YAML, or has an unknown section.
    """
    source = f"--config {path}"
    content = read_yaml_file(path, source)
    return yaml_layer({} if content is None else content, source)


def yaml_layer(content: object, source: str) -> Layer:
    """Return the values of a decoded configuration file.

    Raises:
        ConfigError: A section is unknown or of the wrong shape.
    """
    if not isinstance(content, dict):
        raise ConfigError(f"{source} must be a mapping with the sections env and openai.")
    for key, value in content.items():
        if key in _REFUSED_SWITCHES:
            if value:
                raise ConfigError(f"{source}: {key} is not supported here; remove it.")
        elif key not in _SECTIONS:
            raise UnknownName.of(f"section in {source}:", str(key), _SECTIONS)
    env = content.get("env") or {}
    openai = content.get("openai") or {}
    if not _is_section(env):
        raise ConfigError(f"{source}: env must be a mapping of field names to values.")
    if isinstance(openai, list) and all(map(_is_section, openai)):
        return Layer(source=source, env=env, servers=tuple(openai))
    if not _is_section(openai):
        raise ConfigError(f"{source}: openai must be a mapping, or a list of mappings.")
    return Layer(source=source, env=env, every_server=openai)


def _is_section(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


def load_dotenv(folder: Path) -> list[str]:
    """Put the variables of ``folder/.env`` into the environment; what is there already wins.

    Values are taken literally: ``${...}`` is not expanded.

    Returns:
        The names that were set.

    Raises:
        ConfigError: The file exists and cannot be read.
    """
    path = folder / ".env"
    if not path.is_file():
        return []
    try:
        values = dotenv_values(path, interpolate=False)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    added = {name: value for name, value in values.items() if value and name not in os.environ}
    os.environ.update(added)
    return sorted(added)
