"""The parsers' conformance suite names what a plug-in does wrong."""

import json
from typing import Any

import pytest

from hermes_rl.testing.parser_conformance import check_parse, fuzz
from hermes_rl.types import InvalidCall, ParseResult, ToolCall


class _Mine:
    name = "mine"

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def parse(self, text: str, *_: Any, **__: Any) -> Any:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def _call(arguments: str, name: str = "f", id: str = "1") -> ParseResult:
    return ParseResult(None, [ToolCall(id, name, arguments)])


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([KeyError("x")], "'mine' broke: KeyError"),
        ([None], "'mine' broke: it returned NoneType"),
        ([ParseResult(" ", None)], "blank content is None"),
        ([ParseResult("x", [])], "no calls is None"),
        ([_call("{}", name=" ")], "a call has a name"),
        ([_call("{}", id="")], "a call has an id"),
        ([_call("{bad}")], "JSON text of an object: .*bad"),
        ([_call("[1]")], "JSON text of an object"),
        ([_call('{"a": NaN}')], "JSON text of an object"),
        ([ParseResult("x", None, invalid=(InvalidCall("", "raw"),))], "has a reason"),
        ([ParseResult("x\ud800", None)], "half a surrogate pair"),
        ([ParseResult("x", None), ParseResult("y", None)], "deterministic"),
    ],
)
def test_a_broken_promise_is_named(answers: list[Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_parse(_Mine(*answers), "text")


def test_fuzzing_needs_a_parser_that_writes_calls() -> None:
    with pytest.raises(AssertionError, match=r"mine has no render\(calls, content\)"):
        fuzz(_Mine(ParseResult("x", None)), seconds=1, seed=1)  # type: ignore[arg-type]


def test_fuzzing_shows_the_text_that_breaks_a_parser() -> None:
    class Fragile(_Mine):
        def parse(self, text: str, *_: Any, **__: Any) -> ParseResult:
            return _call(text.removeprefix("CALL ")) if text.startswith("CALL ") else _text(text)

        def render(self, calls: list[ToolCall], content: str = "") -> str:
            return "CALL " + json.dumps([call.name for call in calls])

    with pytest.raises(AssertionError, match=r"mine on '.*JSON text of an object"):
        fuzz(Fragile(None), seconds=60, seed=1)


def _text(text: str) -> ParseResult:
    return ParseResult(text.encode(errors="replace").decode().strip() or None, None)
