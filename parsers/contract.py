"""Asking a parser that may be another package's, which may break its contract in any way.

A parser never raises and answers with a :class:`~hermes_rl.types.ParseResult`. Where one does not,
nobody knows whether the model called a tool: the rollout can be neither scored nor told to the
model as a mistake of its own. So it is an error of the rollout, by name.
"""

from __future__ import annotations

from collections.abc import Sequence

from hermes_rl.author_code import failure_text
from hermes_rl.errors import ParserFault
from hermes_rl.types import InvalidCall, JSONObject, ParseResult, ToolCall, ToolCallParser

__all__ = ["parse_turn"]

SHOWN_CHARACTERS = 2000
"""Of the text that broke a parser, kept with the traceback."""


def parse_turn(
    parser: ToolCallParser,
    text: str,
    tools: Sequence[JSONObject] | None = None,
    finish_reason: str | None = None,
    *,
    reasoning_open: bool | None = None,
    id_seed: str = "",
) -> ParseResult:
    """Return what the parser makes of ``text``; see :class:`~hermes_rl.types.ToolCallParser`.

    Raises:
        ParserFault: It raised, called ``sys.exit``, or returned what is no result. A cause carries
            the beginning of the text as a note.
    """
    try:
        result = parser.parse(
            text, tools, finish_reason, reasoning_open=reasoning_open, id_seed=id_seed
        )
    except (Exception, SystemExit) as error:  # the author's code may raise anything
        problem = failure_text(error)
        error.add_note(f"The text began: {text[:SHOWN_CHARACTERS]!r}")
        raise _fault(parser, problem) from error
    problem = _wrong_in(result)
    if problem:
        raise _fault(parser, problem)
    return result


def _fault(parser: ToolCallParser, problem: str) -> ParserFault:
    name = getattr(parser, "name", type(parser).__name__)
    return ParserFault(
        f"The tool-call parser {name!r} broke: {problem}. A parser answers every text with a "
        "ParseResult; mend it, or choose another (tool_call_parser)."
    )


def _wrong_in(result: object) -> str:
    """Say which part of a parser's answer is not what it must be; "" if all is well."""
    if not isinstance(result, ParseResult):
        return f"it returned {type(result).__name__}, no ParseResult"
    if not isinstance(result.content, str | None) or not isinstance(result.reasoning, str | None):
        return "content and reasoning must be text or None"
    if not isinstance(result.trailing, str) or not isinstance(result.markers, int):
        return "trailing must be text, markers a number"
    calls = result.tool_calls
    if not isinstance(calls, list | None) or not all(map(_is_call, calls or ())):
        return "tool_calls must be None or a list of ToolCall, whose fields are text"
    invalid = result.invalid
    if not isinstance(invalid, tuple | list) or not all(map(_is_invalid_call, invalid)):
        return "invalid must be a tuple of InvalidCall, whose fields are text"
    return "" if _is_unicode(result) else "a text holds half a surrogate pair, which is no Unicode"


def _is_call(entry: object) -> bool:
    fields = (entry.id, entry.name, entry.arguments) if isinstance(entry, ToolCall) else (None,)
    return all(isinstance(field, str) for field in fields)


def _is_invalid_call(entry: object) -> bool:
    fields = (entry.reason, entry.raw, entry.code) if isinstance(entry, InvalidCall) else (None,)
    return all(isinstance(field, str) for field in fields)


def _is_unicode(result: ParseResult) -> bool:
    """Say whether all texts can be sent and stored: whatever comes after relies on it."""
    texts = [result.content or "", result.reasoning or "", result.trailing]
    for call in result.tool_calls or ():
        texts += (call.id, call.name, call.arguments)
    for entry in result.invalid:
        texts += (entry.reason, entry.raw, entry.name or "")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return False
    return True
