"""From the JSON text of a call to checked arguments.

Rules, in order:

1. The text must be one JSON object. Empty text and ``null`` mean no arguments; a JSON string
   that holds an object is decoded once more.
2. An unknown parameter is an error that names the nearest known one.
3. ``null`` for a parameter that is not nullable means "not given".
4. Values are coerced to the schema's type where nothing is lost: ``"5"`` and ``5.0`` -> 5,
   ``"true"`` -> true, 5 -> ``"5"`` for a string, JSON text -> array or object, anything else
   for an array -> a list of one. Everything else is an error.
5. A value outside an ``enum`` is an error; letter case and surrounding blanks do not matter.
6. A missing parameter takes its ``default``; a required one without a default is an error.

Nested values are coerced by the same rules but not checked for required and unknown keys, and
``minimum``/``maximum`` are left to the tools: they clamp.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from hermes_rl.types import JSONObject

__all__ = ["MAX_ARGUMENTS_CHARS", "ParsedArguments", "parse_arguments"]

MAX_ARGUMENTS_CHARS = 2_000_000
"""Longer arguments are refused unread: decoding them would hold the event loop too long."""
_EXCERPT_CHARS = 30

Schema = Mapping[str, Any]


@dataclass(slots=True, frozen=True)
class ParsedArguments:
    """``values``, or the ``error`` to tell the model."""

    values: JSONObject = field(default_factory=dict)
    error: str | None = None


class _MismatchError(ValueError):
    """A value that does not fit its schema; never leaves this module."""


def parse_arguments(
    text: str, parameters: Schema, *, aliases: Mapping[str, Mapping[str, str]] | None = None
) -> ParsedArguments:
    """Parse, coerce and check the arguments of one call by the rules above."""
    try:
        given = _decode(text)
        return ParsedArguments(_check(given, parameters, aliases or {}))
    except _MismatchError as error:
        return ParsedArguments(error=str(error))


def _decode(text: str) -> JSONObject:
    if len(text) > MAX_ARGUMENTS_CHARS:
        raise _MismatchError(
            f"The arguments have {len(text):,} characters; at most {MAX_ARGUMENTS_CHARS:,} are "
            "accepted. Send less at once."
        )
    value = _loads(text) if text.strip() else {}
    if isinstance(value, str):
        value = _loads(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _MismatchError(f"The arguments must be a JSON object, not {_kind(value)}.")
    return value


def _loads(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _MismatchError(_locate(text, error)) from None
    except UnicodeEncodeError:
        message = "The arguments hold half a surrogate pair; send whole characters."
        raise _MismatchError(message) from None


def _locate(text: str, error: orjson.JSONDecodeError) -> str:
    position = min(error.pos, len(text))
    message = str(error).partition(": line ")[0]
    if not text[position:].strip():
        where = f"the text ends too early, after {text[-_EXCERPT_CHARS:]!r}"
    else:
        before = text[max(0, position - _EXCERPT_CHARS) : position]
        where = f"after {before!r} comes {text[position : position + _EXCERPT_CHARS]!r}"
    return (
        f"The arguments are not valid JSON: {message} (line {error.lineno}, column "
        f"{error.colno}, character {position}): {where}. Nothing was run."
    )


def _check(
    given: JSONObject, parameters: Schema, aliases: Mapping[str, Mapping[str, str]]
) -> JSONObject:
    properties: Schema = parameters.get("properties") or {}
    if parameters.get("additionalProperties", False) is False:
        _refuse_unknown(given, properties)
    values: JSONObject = {}
    for name, value in given.items():
        schema = properties.get(name, {})
        if value is None:
            if _accepts_null(schema):
                values[name] = None
            continue
        if isinstance(value, str):
            value = aliases.get(name, {}).get(value.strip().lower(), value)
        values[name] = _coerce(value, schema, name)
    for name, schema in properties.items():
        if name not in values and "default" in schema:
            values[name] = schema["default"]
    missing = [name for name in parameters.get("required") or () if name not in values]
    if missing:
        raise _MismatchError(f"Missing required {_listed(missing, properties)}.")
    return values


def _refuse_unknown(given: JSONObject, properties: Schema) -> None:
    for name in given:
        if name in properties:
            continue
        near = difflib.get_close_matches(name, properties, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(properties) or "none"
        raise _MismatchError(f"Unknown parameter {name!r}.{hint} Parameters: {known}.")


def _listed(names: Sequence[str], properties: Schema) -> str:
    described = [f"{name!r} ({_types(properties.get(name, {}))})" for name in names]
    return ("parameters " if len(names) > 1 else "parameter ") + ", ".join(described)


def _coerce(value: Any, schema: Schema, path: str) -> Any:
    """Return ``value`` as the schema wants it.

    Raises:
        _MismatchError: It cannot be had without loss.
    """
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return _coerce_any(value, options, path)
    for kind in _type_names(schema):
        if _is(value, kind):
            return _checked(value, kind, schema, path)
    for kind in _type_names(schema):
        converted = _convert(value, kind)
        if converted is not None:
            return _checked(converted, kind, schema, path)
    if not _type_names(schema):
        return _checked(value, "", schema, path)
    raise _MismatchError(
        f"Parameter {path!r} must be {_types(schema)}, not {_kind(value)}: {_shown(value)}."
    )


def _coerce_any(value: Any, options: Sequence[Schema], path: str) -> Any:
    failure = None
    for option in options:
        try:
            return _coerce(value, option, path)
        except _MismatchError as error:
            failure = failure or error
    raise failure or _MismatchError(f"Parameter {path!r} fits nothing that is allowed.")


def _checked(value: Any, kind: str, schema: Schema, path: str) -> Any:
    """Coerce what is inside ``value`` and check it against an enum."""
    if kind == "array" and isinstance(schema.get("items"), Mapping):
        return [_coerce(item, schema["items"], f"{path}[{i}]") for i, item in enumerate(value)]
    if kind == "object" and isinstance(schema.get("properties"), Mapping):
        inner = schema["properties"]
        return {
            key: _coerce(item, inner[key], f"{path}.{key}") if key in inner else item
            for key, item in value.items()
        }
    allowed = schema.get("enum")
    if not allowed or value in allowed:
        return value
    folded = value.strip().lower() if isinstance(value, str) else value
    for candidate in allowed:
        if isinstance(candidate, str) and candidate.lower() == folded:
            return candidate
    choices = ", ".join(str(candidate) for candidate in allowed)
    raise _MismatchError(f"Parameter {path!r} must be one of {choices}, not {_shown(value)}.")


def _convert(value: Any, kind: str) -> Any:
    """Return ``value`` as ``kind``, or None where that would lose something."""
    if kind == "array":
        decoded = _decoded(value)
        return decoded if isinstance(decoded, list) else [value]
    if kind == "object":
        decoded = _decoded(value)
        return decoded if isinstance(decoded, dict) else None
    if kind == "string":
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
    if kind == "boolean":
        text = value.strip().lower() if isinstance(value, str) else ""
        return {"true": True, "false": False}.get(text)
    if kind in ("integer", "number"):
        return _number(value, kind)
    return None


def _number(value: Any, kind: str) -> int | float | None:
    if isinstance(value, str):
        value = _decoded(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind == "number":
        return value
    return int(value) if float(value).is_integer() else None


def _decoded(value: Any) -> Any:
    """Decode JSON text; None if it is no JSON text."""
    if not isinstance(value, str):
        return None
    try:
        return orjson.loads(value)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        return None


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        types = int if kind == "integer" else (int, float)
        return isinstance(value, types) and not isinstance(value, bool)
    by_kind = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
    return isinstance(value, by_kind.get(kind, ()))


def _type_names(schema: Schema) -> Sequence[str]:
    declared = schema.get("type")
    if declared is None:
        return ()
    return [declared] if isinstance(declared, str) else list(declared)


def _accepts_null(schema: Schema) -> bool:
    options = schema.get("anyOf") or schema.get("oneOf") or ()
    return (
        bool(schema.get("nullable"))
        or "null" in _type_names(schema)
        or any(_accepts_null(option) for option in options)
    )


def _types(schema: Schema) -> str:
    return " or ".join(_type_names(schema)) or "any value"


def _kind(value: Any) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "a string"}
    names |= {list: "an array", dict: "an object", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 2 * _EXCERPT_CHARS else text[: 2 * _EXCERPT_CHARS] + "..."
