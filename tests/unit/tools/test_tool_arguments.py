import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.tools import NATIVE_TOOLS
from hermes_rl.tools.arguments import MAX_ARGUMENTS_CHARS, parse_arguments

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer", "default": 7},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "names": {"type": "array", "items": {"type": "string"}},
        "table": {"type": "object"},
        "mode": {"type": "string", "enum": ["fast", "slow"]},
        "maybe": {"type": ["string", "null"]},
    },
    "required": ["text"],
}


def parse(**arguments: object) -> dict[str, object]:
    parsed = parse_arguments(orjson.dumps({"text": "t", **arguments}).decode(), PARAMETERS)
    assert parsed.error is None, parsed.error
    return parsed.values


def error_of(text: str) -> str:
    parsed = parse_arguments(text, PARAMETERS)
    assert parsed.error is not None
    return parsed.error


@pytest.mark.parametrize(
    ("name", "given_value", "coerced"),
    [
        ("count", "5", 5),
        ("count", " 5 ", 5),
        ("count", 5.0, 5),
        ("count", "5.0", 5),
        ("ratio", "0.5", 0.5),
        ("flag", "true", True),
        ("flag", "False", False),
        ("names", '["a", "b"]', ["a", "b"]),
        ("names", "a", ["a"]),
        ("names", 3, ["3"]),
        ("table", '{"a": 1}', {"a": 1}),
        ("text", 12, "12"),
        ("mode", " FAST ", "fast"),
        ("maybe", None, None),
    ],
)
def test_values_are_coerced_to_the_schema(name: str, given_value: object, coerced: object) -> None:
    assert parse(**{name: given_value})[name] == coerced


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("count", "4.5", "Parameter 'count' must be integer, not a string: '4.5'."),
        ("count", True, "Parameter 'count' must be integer, not a boolean: True."),
        ("count", [1], "Parameter 'count' must be integer, not an array: [1]."),
        ("flag", "yes", "Parameter 'flag' must be boolean, not a string: 'yes'."),
        ("text", {"a": 1}, "Parameter 'text' must be string, not an object: {'a': 1}."),
        ("text", 1.5, "Parameter 'text' must be string, not a number: 1.5."),
        ("table", "x", "Parameter 'table' must be object, not a string: 'x'."),
        ("mode", "medium", "Parameter 'mode' must be one of fast, slow, not 'medium'."),
        ("names", [["x"]], "Parameter 'names[0]' must be string, not an array: ['x']."),
    ],
)
def test_a_wrong_type_is_named(name: str, value: object, expected: str) -> None:
    assert error_of(orjson.dumps({"text": "t", name: value}).decode()) == expected


def test_an_unknown_parameter_names_the_nearest() -> None:
    error = error_of('{"text": "t", "cout": 3}')
    assert error.startswith("Unknown parameter 'cout'. Did you mean 'count'? Parameters: text,")


def test_a_missing_parameter_is_named_with_its_type() -> None:
    assert error_of('{"count": 3}') == "Missing required parameter 'text' (string)."


def test_null_means_not_given_unless_it_is_allowed() -> None:
    assert parse(count=None)["count"] == 7
    assert error_of('{"text": null}') == "Missing required parameter 'text' (string)."


@pytest.mark.parametrize("text", ["", "  ", "null", "{}", '"{}"'])
def test_no_arguments_are_no_malformed_arguments(text: str) -> None:
    assert parse_arguments(text, {"type": "object", "properties": {}}).values == {}


def test_doubly_encoded_arguments_are_decoded() -> None:
    assert parse_arguments('"{\\"text\\": \\"x\\"}"', PARAMETERS).values["text"] == "x"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"text": "a",}', "(line 1, column 13, character 12)"),
        ('{"text": "a', "the text ends too early"),
        ('{"text": "a"} tail', "comes 'tail'"),
        ("[1]", "must be a JSON object, not an array"),
        ("text", "not valid JSON"),
        ('{"text": "\\ud800"}', "not valid JSON"),
        ('{"text": "\ud800"}', "surrogate"),
    ],
)
def test_malformed_json_says_where(text: str, expected: str) -> None:
    assert expected in error_of(text)


def test_arguments_beyond_the_limit_are_refused_unread() -> None:
    text = orjson.dumps({"text": "x" * MAX_ARGUMENTS_CHARS}).decode()
    assert "2,000,000 are accepted" in error_of(text)


def test_one_megabyte_of_arguments_is_accepted() -> None:
    assert len(str(parse(text="x" * 1_000_000)["text"])) == 1_000_000


def test_aliases_of_values_are_understood() -> None:
    tool = NATIVE_TOOLS["search_files"]
    text = '{"pattern": "x", "target": "grep"}'
    parsed = parse_arguments(text, tool.parameters, aliases=tool.aliases)
    assert parsed.values["target"] == "content"


def test_alternatives_are_tried_in_order() -> None:
    schema = {
        "type": "object",
        "properties": {"x": {"anyOf": [{"type": "integer"}, {"type": "array"}]}},
    }
    assert parse_arguments('{"x": "5"}', schema).values["x"] == 5
    assert parse_arguments('{"x": "a"}', schema).values["x"] == ["a"]


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*PARAMETERS["properties"], "other"]), JSON))
def test_any_json_gives_values_of_the_declared_types_or_an_error(arguments: dict) -> None:
    try:
        text = orjson.dumps(arguments).decode()
    except TypeError:  # half a surrogate pair
        return
    parsed = parse_arguments(text, PARAMETERS)
    kinds = {"string": str, "integer": int, "number": (int, float), "boolean": bool}
    kinds |= {"array": list, "object": dict}
    if parsed.error is not None:
        assert parsed.values == {}
        return
    for name, value in parsed.values.items():
        declared = PARAMETERS["properties"][name]["type"]
        if value is None:
            assert "null" in declared
        elif isinstance(declared, str):
            assert isinstance(value, kinds[declared])


@settings(max_examples=150, deadline=None)
@given(st.text())
def test_no_text_makes_the_parser_raise(text: str) -> None:
    parse_arguments(text, PARAMETERS)
