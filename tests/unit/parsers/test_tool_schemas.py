"""Types from schemas, and text turned into values; the tables are in tests/data/parser_cases."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_rl.parsers.tool_schemas import ToolSchemas, convert


def _types(schema: Any, **definitions: Any) -> frozenset[str] | None:
    parameters = {"properties": {"p": schema}, "$defs": definitions}
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    return ToolSchemas(tools).types("f", "p")


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"enum": [1, "a", None, True, 1.5, [], {}]}, None),
        ({"const": {}}, {"object"}),
        ({"anyOf": [{"type": "string"}, {"allOf": [{"type": "array"}]}]}, {"string", "array"}),
        ({"$ref": "#/$defs/D"}, {"boolean"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str] | None) -> None:
    every = {"integer", "string", "null", "boolean", "number", "array", "object"}
    assert _types(schema, D={"type": "boolean"}) == frozenset(types or every)


@pytest.mark.parametrize(
    "schema",
    [
        *({}, {"description": "x"}, None, 7, "string", {"type": 7}, {"type": [7]}, {"anyOf": 7}),
        *({"$ref": "#/nowhere"}, {"$ref": "http://x/y"}, {"$ref": 7}, {"enum": 7}),
    ],
)
def test_an_unusable_schema_says_nothing(schema: Any) -> None:
    assert _types(schema) is None


def test_a_reference_to_itself_ends() -> None:
    loop = {"anyOf": [{"$ref": "#/$defs/D"}, {"type": "null"}]}
    assert _types({"$ref": "#/$defs/D"}, D=loop) == {"null"}


def test_tools_that_are_not_schemas_are_ignored() -> None:
    tools: list[Any] = [
        None,
        7,
        {},
        {"function": None},
        {"function": {"name": 3}},
        {"name": "flat"},
    ]
    schemas = ToolSchemas(tools)
    assert schemas.declares("flat")
    assert schemas.types("flat", "p") is None
    assert not schemas.declares("f")


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("7.0", {"integer"}, 7),
        ("7.5", {"integer"}, "7.5"),
        ("+7", {"integer"}, "+7"),
        ("07", {"integer"}, "07"),
        (" 7 ", {"integer"}, 7),
        ("true", {"integer", "boolean"}, True),
        ("[1]", {"object"}, "[1]"),
        ("{'a': {1, 2}}", {"object"}, "{'a': {1, 2}}"),
        ("[1] [2]", {"array"}, "[1] [2]"),
        ("(1, 2)", {"array"}, [1, 2]),
        ("[1e999]", {"array"}, "[1e999]"),
        ("[" * 600 + "]" * 600, {"array"}, "[" * 600 + "]" * 600),
        ("9" * 5000, {"integer"}, "9" * 5000),
        ("null", {"string"}, "null"),
        ("x", {"string", "integer"}, "x"),
        ("5", {"string", "integer"}, 5),
    ],
)
def test_text_becomes_the_first_type_it_fits(text: str, types: set[str], value: Any) -> None:
    found = convert(text, frozenset(types))
    assert found == value
    assert type(found) is type(value)
