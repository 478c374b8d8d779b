"""A parser of another package that breaks: an error that names it, with the text it broke on."""

from collections.abc import Callable
from typing import Any

import pytest

from hermes_rl.errors import ParserFault
from hermes_rl.parsers.contract import parse_turn
from hermes_rl.types import InvalidCall, ParseResult, ToolCall


class _Mine:
    name = "mine"

    def __init__(self, answer: Callable[[str], Any]) -> None:
        self._answer = answer

    def parse(self, text: str, *_: Any, **__: Any) -> Any:
        return self._answer(text)


def _raises(error: BaseException) -> _Mine:
    def answer(text: str) -> ParseResult:
        raise error

    return _Mine(answer)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no brackets"), "ValueError: no brackets"),
        (RecursionError("too deep"), "RecursionError: too deep"),
        (SystemExit(3), "SystemExit: 3"),
    ],
)
def test_a_parser_that_raises_is_named_with_place_and_text(error: BaseException, said: str) -> None:
    with pytest.raises(ParserFault) as caught:
        parse_turn(_raises(error), "half a call")
    assert f"parser 'mine' broke: {said} ({__file__}:" in str(caught.value)
    assert "tool_call_parser" in str(caught.value)
    assert caught.value.__cause__ is error
    assert error.__notes__ == ["The text began: 'half a call'"]


def test_an_interrupt_while_parsing_stays_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        parse_turn(_raises(KeyboardInterrupt()), "")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "it returned NoneType, no ParseResult"),
        (("text", []), "it returned tuple, no ParseResult"),
        (ParseResult(b"text", None), "content and reasoning must be text"),  # type: ignore[arg-type]
        (ParseResult(None, [{"name": "f"}]), "list of ToolCall"),  # type: ignore[list-item]
        (ParseResult(None, [ToolCall("1", "f", {})]), "list of ToolCall"),  # type: ignore[arg-type]
        (ParseResult(None, None, invalid=("f(",)), "tuple of InvalidCall"),  # type: ignore[arg-type]
        (ParseResult(None, None, invalid=None), "tuple of InvalidCall"),  # type: ignore[arg-type]
        (ParseResult("half \ud800", None), "half a surrogate pair"),
        (ParseResult(None, [ToolCall("1", "f", '{"a": "\udfff"}')]), "half a surrogate pair"),
        (ParseResult(None, None, invalid=(InvalidCall("\ud800", ""),)), "half a surrogate pair"),
    ],
)
def test_an_answer_that_is_no_result_is_named(answer: object, said: str) -> None:
    with pytest.raises(ParserFault, match=f"parser 'mine' broke: .*{said}"):
        parse_turn(_Mine(lambda text: answer), "text")


def test_a_result_is_passed_on_as_it_is() -> None:
    result = ParseResult("x", [ToolCall("1", "f", "{}")], invalid=(InvalidCall("why", "raw"),))
    assert parse_turn(_Mine(lambda text: result), "text") is result
