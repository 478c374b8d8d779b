"""Checks at start that a chat template writes calls as the chosen parser reads them.

A wrong parser fails silently: the model calls tools and nothing ever runs. The template shows how
its model writes a call, so one call is rendered, parsed and compared; no model is needed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence

from hermes_rl.errors import ConfigError, ParserFault
from hermes_rl.parsers import get_parser, list_parsers
from hermes_rl.parsers.contract import parse_turn
from hermes_rl.parsers.format import Format
from hermes_rl.types import JSONObject, Message, ToolCall, ToolCallParser

__all__ = ["RenderChat", "template_fault", "warn_if_template_does_not_fit"]

RenderChat = Callable[[Sequence[Message], Sequence[JSONObject]], str]
"""Renders messages and tool schemas to a prompt, without a generation prompt at its end."""

_ARGUMENTS = {"text": 'two words, "quoted"', "count": 3}
_CALL = ToolCall("call_0", "probe_tool", json.dumps(_ARGUMENTS))
_PARAMETERS = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["text", "count"],
}
_TOOL: JSONObject = {
    "type": "function",
    "function": {
        "name": _CALL.name,
        "description": "Checks that calls are read as they are written.",
        "parameters": _PARAMETERS,
    },
}
_USER: Message = {"role": "user", "content": "Call the tool."}
_WORDS = "zqxjkv words only"
_SHOWN_CHARACTERS = 300

_log = logging.getLogger(__name__)


def template_fault(render: RenderChat, parser: ToolCallParser) -> str | None:
    """Return what is wrong between a chat template and a parser, None if they fit.

    Args:
        render: The template. A string in ``arguments`` is the OpenAI form; a template that
            needs an object must get it from its renderer.
        parser: The parser that will read the model's turns.
    """
    try:
        turn, with_header = _assistant_turns(render, _native_id(parser))
    except Exception as error:  # templates are programs of others and may raise anything
        return f"the chat template cannot render a tool call: {type(error).__name__}: {error}"
    try:
        if _reads(parser, turn) or _reads(parser, with_header):
            return None
    except ParserFault as error:
        return str(error)
    fitting = [name for name in list_parsers() if _would_read(name, turn)]
    advice = f"Parsers that read it: {', '.join(fitting)}." if fitting else "No parser reads it."
    return (
        f"the parser {parser.name!r} does not read the call that the chat template writes: "
        f"{turn[:_SHOWN_CHARACTERS]!r}. {advice}"
    )


def warn_if_template_does_not_fit(render: RenderChat, parser: ToolCallParser) -> bool:
    """Log a warning if the template does not fit the parser; return whether it fits."""
    fault = template_fault(render, parser)
    if fault is not None:
        _log.warning("Tool calls will not work: %s", fault)
    return fault is None


def _native_id(parser: ToolCallParser) -> str:
    """Return an id as the parser's family has it: templates refuse or rewrite others."""
    if not isinstance(parser, Format):
        return _CALL.id
    calls = parser.parse(parser.render([_CALL]), [_TOOL]).tool_calls
    return calls[0].id if calls else _CALL.id


def _assistant_turns(render: RenderChat, call_id: str) -> tuple[str, str]:
    """Return what the template writes for an assistant turn with one call, end token included.

    Twice: without what a turn of words begins with as well, and with all that follows the user.
    Where turns begin with their kind (channels), the first lacks a part of that.
    """
    words: Message = {"role": "assistant", "content": _WORDS}
    call = ToolCall(call_id, _CALL.name, _CALL.arguments)
    calling: Message = {"role": "assistant", "content": None, "tool_calls": [call.to_openai()]}
    spoken = render([_USER, words], [_TOOL])
    called = render([_USER, calling], [_TOOL])
    front, _, _ = spoken.partition(_WORDS)
    turn = called[_shared_length(front, called) :]
    if not turn.strip():
        raise ConfigError("it writes nothing for an assistant message with tool_calls")
    asked = render([_USER], [_TOOL])
    return turn, called[_shared_length(asked, called) :]


def _shared_length(one: str, other: str) -> int:
    """Return how many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    differing = next((n for n, (left, right) in pairs if left != right), None)
    return min(len(one), len(other)) if differing is None else differing


def _would_read(name: str, turn: str) -> bool:
    """Say whether the parser of this name reads a call; plug-ins that break do not."""
    try:
        return _reads(get_parser(name), turn)
    except (ConfigError, ParserFault):
        return False


def _reads(parser: ToolCallParser, turn: str) -> bool:
    result = parse_turn(parser, turn, [_TOOL])
    calls = result.tool_calls or []
    return (
        [call.name for call in calls] == [_CALL.name]
        and _arguments(calls[0]) == _ARGUMENTS
        and not result.invalid
    )


def _arguments(call: ToolCall) -> object:
    try:
        return json.loads(call.arguments)
    except ValueError:
        return None
