"""Merging configuration sources into models, and what a run directory keeps of the result.

Precedence, highest first: command line, YAML file (``--config``), the recorded run
(``--resume``), command defaults that must win, the environment's ``config_init()``, other
command defaults, class defaults. Callers give the layers in the opposite order, lowest first.
"Set" means present in pydantic's ``model_fields_set``.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import SecretStr, ValidationError

from hermes_rl.bounds import shown
from hermes_rl.config import (
    AFFECTS_SCORE,
    AtroposFields,
    ConfigModel,
    EnvConfig,
    ServerConfig,
    TrainingFields,
)
from hermes_rl.config_sources import Layer
from hermes_rl.errors import ConfigError
from hermes_rl.types import JSONObject

__all__ = [
    "REDACTED",
    "idle_settings",
    "layer_of_models",
    "public_config",
    "recorded_layers",
    "resolve",
    "score_config",
    "with_reasoning",
]

REDACTED = "[redacted]"
_SECRET_KEY = re.compile(r"(?i)(^|[_-])(api[_-]?key|token|secret|password|authorization)$")
"""Keys inside free-form options whose values are never written (``max_tokens`` is none)."""

_TRACKING = {"use_wandb", "wandb_name"}
"""Fields of Atropos that ``evaluate`` honours."""

EnvT = TypeVar("EnvT", bound=ConfigModel)
ModelT = TypeVar("ModelT", bound=ConfigModel)


def resolve(env_cls: type[EnvT], layers: Sequence[Layer]) -> tuple[EnvT, tuple[ServerConfig, ...]]:
    """Merge layers, lowest precedence first, into validated models.

    A layer that lists servers replaces the list below it; a list of the same length is merged
    one by one. With no layer that lists any there is one server. ``model_fields_set`` of the
    results holds what came from a layer that counts as set.

    Raises:
        ConfigError: A field is unknown (with the nearest known one) or has a bad value; every
            fault is named with its source.
    """
    env: JSONObject = {}
    servers: list[JSONObject] = [{}]
    env_sources: dict[str, str] = {}
    server_sources: list[dict[str, str]] = [{}]
    for layer in layers:
        env |= layer.env
        given = _per_server(layer, len(servers))
        if len(given) != len(servers):
            servers = [{} for _ in given]
            server_sources = [{} for _ in given]
        servers = [{**below, **values} for below, values in zip(servers, given, strict=True)]
        if layer.counts_as_set:
            env_sources |= dict.fromkeys(layer.env, layer.source)
            for sources, values in zip(server_sources, given, strict=True):
                sources |= dict.fromkeys(values, layer.source)
    merged = _validated(env_cls, env, "env", env_sources)
    return merged, tuple(
        _validated(ServerConfig, values, f"openai.{index}", server_sources[index])
        for index, values in enumerate(servers)
    )


def _per_server(layer: Layer, count: int) -> list[JSONObject]:
    """Return what a layer gives each of ``count`` servers, or each of the servers it lists."""
    listed = ({},) * count if layer.servers is None else layer.servers
    for index, values in layer.one_server.items():
        if index >= len(listed):
            raise ConfigError(
                f"--openai.{index}.{next(iter(values))}: the configuration has {len(listed)} "
                "server(s), counted from 0. List more under openai in the YAML file."
            )
    return [
        {**values, **layer.every_server, **layer.one_server.get(index, {})}
        for index, values in enumerate(listed)
    ]


def _validated(
    model: type[ModelT], values: JSONObject, section: str, sources: Mapping[str, str]
) -> ModelT:
    try:
        result = model.model_validate(values)
    except ValidationError as error:
        faults = [_fault(fault, model, section, sources) for fault in error.errors()]
        raise ConfigError("\n".join(faults)) from None
    except RecursionError:
        raise ConfigError(f"{section}: a value is nested too deeply.") from None
    result.__pydantic_fields_set__ = set(sources)
    return result


def _fault(
    fault: Mapping[str, Any], model: type[ConfigModel], section: str, sources: Mapping[str, str]
) -> str:
    """Say in one line what is wrong with one field. Values of secrets are not repeated."""
    path = [str(part) for part in fault["loc"]]
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not path:
        return f"{section}: {message}."
    source = f" (from {sources[path[0]]})" if path[0] in sources else ""
    name = ".".join([section, *path])
    if fault["type"] == "extra_forbidden":
        near = difflib.get_close_matches(path[0], model.model_fields, n=1, cutoff=0.4)
        hint = f" Did you mean {section}.{near[0]}?" if near else ""
        return f"Unknown field {name}{source}.{hint}"
    given = "" if model.takes(path[0], SecretStr) else f", not {shown(fault['input'])}"
    return f"{name}{source}: {message}{given}."


def layer_of_models(env: ConfigModel, servers: Sequence[ServerConfig] | None, source: str) -> Layer:
    """Return what is explicitly set in models, e.g. by an environment's ``config_init()``."""
    return Layer(
        source=source,
        env=_set_values(env),
        servers=None if servers is None else tuple(_set_values(server) for server in servers),
    )


def _set_values(model: ConfigModel) -> JSONObject:
    return {name: getattr(model, name) for name in sorted(model.model_fields_set)}


def idle_settings(env: EnvConfig) -> list[str]:
    """Return the fields that were set, and with which ``evaluate`` does nothing."""
    idle = AtroposFields.model_fields.keys() | TrainingFields.model_fields.keys()
    return sorted(f"env.{name}" for name in (env.model_fields_set & idle) - _TRACKING)


def with_reasoning(
    env: EnvT, servers: Iterable[ServerConfig]
) -> tuple[EnvT, tuple[ServerConfig, ...]]:
    """Apply Atropos' reasoning settings of the environment to requests and servers.

    ``env`` is an ``EnvConfig`` or a ``HermesAgentEnvConfig``. ``thinking_mode`` becomes a request
    field unless one is given; the others become the defaults of servers that do not set them.
    """
    if getattr(env, "thinking_mode", False):
        extra_body = {"reasoning": {"enabled": True}, **(getattr(env, "extra_body", None) or {})}
        env = env.model_copy(update={"extra_body": extra_body})
    defaults = {
        name: value
        for name in ("reasoning_effort", "max_reasoning_tokens")
        if (value := getattr(env, name, None)) is not None
    }
    return env, tuple(
        server.model_copy(
            update={
                name: value for name, value in defaults.items() if getattr(server, name) is None
            }
        )
        for server in servers
    )


def score_config(env: ConfigModel, servers: Sequence[ServerConfig]) -> JSONObject:
    """Return the fields that affect scores by dotted name, as JSON, secrets removed.

    ``env.tool_call_parser`` counts only where it was set: only then does it apply to servers
    that parse calls themselves.
    """
    values = {f"env.{name}": value for name, value in _score_values(env).items()}
    if "tool_call_parser" not in env.model_fields_set:
        values["env.tool_call_parser"] = None
    for index, server in enumerate(servers):
        scored = _score_values(server)
        values |= {f"openai.{index}.{name}": value for name, value in scored.items()}
    return values


def _score_values(model: ConfigModel) -> JSONObject:
    public = _public(model)
    fields = type(model).model_fields.items()
    return {name: public[name] for name, field in fields if AFFECTS_SCORE in field.metadata}


def public_config(env: ConfigModel, servers: Sequence[ServerConfig]) -> JSONObject:
    """Return the whole configuration as JSON without secrets, and which fields were set."""
    return {
        "env": _public(env),
        "env_set": sorted(env.model_fields_set),
        "openai": [_public(server) for server in servers],
        "openai_set": [sorted(server.model_fields_set - {"api_key"}) for server in servers],
    }


def _public(model: ConfigModel) -> JSONObject:
    secret = {name for name in type(model).model_fields if model.takes(name, SecretStr)}
    values: JSONObject = _redacted(model.model_dump(mode="json", exclude=secret))
    if isinstance(url := values.get("base_url"), str):
        values["base_url"] = _without_password(url)
    return values


def _redacted(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: REDACTED if _SECRET_KEY.search(str(key)) else _redacted(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_redacted(inner) for inner in value]
    return value


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{REDACTED}@{host}"))


def recorded_layers(config: Mapping[str, Any], source: str) -> tuple[Layer, Layer]:
    """Return the layers of a recorded :func:`public_config`, for ``--resume``.

    The first holds every value, so that a changed default or environment variable cannot change
    a resumed run; the second what had been set. A field that held a secret is left out: it must
    be given again.
    """
    env = _without_redacted(config["env"])
    servers = [_without_redacted(server) for server in config["openai"]]
    env_set = {name: env[name] for name in config["env_set"] if name in env}
    servers_set = [
        {name: server[name] for name in names if name in server}
        for server, names in zip(servers, config["openai_set"], strict=True)
    ]
    return (
        Layer(source=source, env=env, servers=tuple(servers), counts_as_set=False),
        Layer(source=source, env=env_set, servers=tuple(servers_set)),
    )


def _without_redacted(values: Mapping[str, Any]) -> JSONObject:
    return {name: value for name, value in values.items() if REDACTED not in str(value)}
