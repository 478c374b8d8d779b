"""Types of tool parameters, from JSON schemas, and text turned into values of these types.

Formats that write arguments as tags carry no types: ``<parameter=days>3</parameter>`` is a number
only because the schema says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_rl.parsers.json_value import BadJSON, decode, encode
from hermes_rl.parsers.python_literal import BadLiteral, read_literal
from hermes_rl.parsers.scan import skip_space
from hermes_rl.types import JSONObject

__all__ = ["ToolSchemas", "convert"]

_MAX_DEPTH = 32
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*+)(\.[0-9]++)?(?:[eE][-+]?[0-9]++)?")
_TYPE_NAMES = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


class ToolSchemas:
    """The schemas of the tools that a model was offered. Unusable schemas count as absent."""

    def __init__(self, tools: Sequence[JSONObject] | None) -> None:
        self._parameters: dict[str, JSONObject] = {}
        for tool in tools or ():
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                schema = function.get("parameters")
                self._parameters[function["name"]] = schema if isinstance(schema, dict) else {}
        self._types: dict[tuple[str, str], frozenset[str] | None] = {}

    def declares(self, function: str) -> bool:
        """Whether there is a tool of this name."""
        return function in self._parameters

    def has_parameter(self, function: str, parameter: str) -> bool:
        """Whether the tool declares this parameter."""
        return parameter in self._properties(function)

    def types(self, function: str, parameter: str) -> frozenset[str] | None:
        """Return the JSON types a parameter may have; None if undeclared or untyped."""
        key = (function, parameter)
        if key not in self._types:
            schema = self._properties(function).get(parameter)
            root = self._parameters.get(function, {})
            self._types[key] = frozenset(_types(schema, root, 0)) or None
        return self._types[key]

    def _properties(self, function: str) -> Mapping[str, Any]:
        properties = self._parameters.get(function, {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}


def convert(text: str, types: frozenset[str]) -> Any:
    """Return ``text`` as a value of the first of ``types`` that it fits, else as it is.

    Text that fits none stays a string, so that validation fails where the model can see it.
    """
    stripped = text.strip()
    if "null" in types and stripped in ("null", "None"):
        return None
    if types & {"integer", "number"} and (number := _number(stripped, types)) is not None:
        return number
    if "boolean" in types and stripped.lower() in ("true", "false"):
        return stripped.lower() == "true"
    kinds = tuple(kind for kind, name in ((dict, "object"), (list, "array")) if name in types)
    if kinds and stripped[:1] in ("{", "[", "("):
        value = _container(stripped)
        return value if isinstance(value, kinds) else text
    return text


def _number(text: str, types: frozenset[str]) -> int | float | None:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    try:
        value = decode(text)
        encode(value)
    except BadJSON:
        return None
    if isinstance(value, float) and "number" not in types:
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int | float) else None


def _container(text: str) -> Any:
    """Decode JSON, or a Python literal (templates that write containers with ``str()``)."""
    try:
        value = decode(text)
    except BadJSON:
        try:
            value, end = read_literal(text, 0)
        except BadLiteral:
            return None
        if skip_space(text, end) != len(text):
            return None
    try:
        encode(value)
    except BadJSON:
        return None
    return value


def _types(schema: Any, root: JSONObject, depth: int) -> Iterator[str]:
    """Yield the type names that ``schema`` allows, duplicates included."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return
    declared = schema.get("type")
    names = declared if isinstance(declared, list) else [declared]
    yield from (name for name in names if isinstance(name, str))
    if "const" in schema:
        yield _TYPE_NAMES.get(type(schema["const"]), "string")
    enum = schema.get("enum")
    if isinstance(enum, list):
        yield from (_TYPE_NAMES.get(type(value), "string") for value in enum)
    if "properties" in schema:
        yield "object"
    if "items" in schema:
        yield "array"
    for key in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(key)
        for branch in branches if isinstance(branches, list) else ():
            yield from _types(branch, root, depth + 1)
    if isinstance(schema.get("$ref"), str):
        yield from _types(_resolve(schema["$ref"], root), root, depth + 1)


def _resolve(reference: str, root: JSONObject) -> Any:
    """Follow a local JSON pointer; None if it leads nowhere."""
    if not reference.startswith("#"):
        return None
    node: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or key not in node:
            return None
        node = node[key]
    return node
