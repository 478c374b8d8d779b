"""Reads a chat completion, as servers really send it, into our own data.

Tolerated: arguments as an object instead of text, absent or empty arguments, absent, empty or
repeated call ids, content in parts, reasoning in any of four places, missing usage, odd finish
reasons. Not tolerated (:class:`~hermes_rl.errors.ModelProtocolError`): no choice, no message.
A call whose arguments are no valid JSON stays as it is: the tool dispatcher tells the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import orjson

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ModelProtocolError
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.model.wire import ReasoningSource
from hermes_rl.parsers.contract import parse_turn
from hermes_rl.types import (
    InvalidCall,
    JSONObject,
    Message,
    ParseResult,
    ToolCall,
    ToolCallParser,
    Usage,
)

__all__ = [
    "CallIds",
    "Spoken",
    "first_choice",
    "read_completion",
    "read_message",
    "read_usage",
    "split_think",
]

LONG_TEXT_CHARS = 20_000
"""Longer texts are parsed off the event loop; so much of nothing but calls takes 3 ms at most."""
_parsing = LoopLimiter(1)
"""One thread parses: it holds the interpreter lock all the time."""

_FINISH_REASONS = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
    "safety": "content_filter",
    "refusal": "content_filter",
}


class CallIds:
    """Gives every tool call of a conversation an id that occurs once in it."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def unique(self, proposed: object) -> str:
        """Return ``proposed`` if it is a new, non-empty text, else a new id.

        Ids of our own have nine letters and digits: Mistral's servers accept no others.
        """
        call_id = proposed if isinstance(proposed, str) else ""
        number = len(self._seen)
        while not call_id or call_id in self._seen:
            number += 1
            call_id = f"call{number:05d}"
        self._seen.add(call_id)
        return call_id


@dataclass(slots=True)
class Spoken:
    """What an assistant turn holds.

    Attributes:
        content: Text, None if there is none.
        reasoning: Reasoning text, None if there is none.
        reasoning_details: As the provider sent it, None if it sent none.
        reasoning_source: Where the reasoning text stood.
        tool_calls: In order, with ids unique in the conversation.
        invalid_calls: Calls that cannot be run or answered by id.
        finish_reason: Normalised: ``stop``, ``length``, ``tool_calls``, ``content_filter``, or the
            server's own word in lower case.
        raw_text: The text that a parser took apart, if one did.
        markers: Call markers that it saw there.
    """

    content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[Any] | None = None
    reasoning_source: ReasoningSource = "reasoning_content"
    tool_calls: list[ToolCall] = field(default_factory=list)
    invalid_calls: list[InvalidCall] = field(default_factory=list)
    finish_reason: str = "stop"
    raw_text: str | None = None
    markers: int = 0

    def to_message(self) -> Message:
        """Return the message to store."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [call.to_openai() for call in self.tool_calls]
        elif self.content is None:
            message["content"] = ""
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.reasoning_details is not None:
            message["reasoning_details"] = self.reasoning_details
        return message


_SHAPES: dict[str, tuple[type, ...]] = {"content": (str, list), "tool_calls": (list, dict)}
"""Parts of a message. Another shape is the server's fault, which must not count as the model's."""


def first_choice(data: object, server: str) -> JSONObject:
    """Return the first choice of a decoded completion.

    Raises:
        ModelProtocolError: It has none, or one whose message is none.
    """
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list) or not choices:
        raise ModelProtocolError(f"{server} answered without any choice.", status=200)
    choice = choices[0]
    if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
        raise ModelProtocolError(f"{server} answered with a choice without a message.", status=200)
    for name, kinds in _SHAPES.items():
        value = choice["message"].get(name)
        if value is not None and not isinstance(value, kinds):
            raise ModelProtocolError(
                f"{server} answered with a message whose {name} is a {type(value).__name__}.",
                status=200,
            )
    return choice


def read_message(
    choice: JSONObject,
    ids: CallIds,
    *,
    parser: ToolCallParser | None = None,
    tools: Sequence[JSONObject] = (),
    reasoning_open: bool | None = None,
    id_seed: str = "",
) -> Spoken:
    """Read one choice.

    Args:
        choice: As :func:`first_choice` returns it.
        ids: Of the conversation.
        parser: Takes the content apart if the server itself reports no tool call.
        tools: Schemas, for the parser.
        reasoning_open: Whether the prompt ended inside a reasoning block, None = not known.
        id_seed: Of the ids that the parser makes.

    Raises:
        ParserFault: The parser broke.
    """
    message = choice["message"]
    spoken = Spoken(content=_read_content(message))
    _read_reasoning(message, spoken)
    _read_calls(message, ids, spoken)
    raw_finish = str(choice.get("finish_reason") or "").lower()
    finish = _FINISH_REASONS.get(raw_finish, raw_finish)
    if parser is not None and spoken.content and not message.get("tool_calls"):
        parsed = parse_turn(
            parser,
            spoken.content,
            tools,
            finish or None,
            reasoning_open=reasoning_open,
            id_seed=id_seed,
        )
        _take_over(parsed, spoken, ids)
    elif spoken.content and spoken.reasoning is None:
        spoken.reasoning, spoken.content = split_think(spoken.content)
        if spoken.reasoning is not None:
            spoken.reasoning_source = "content"
    if finish in ("", "stop", "tool_calls"):
        finish = "tool_calls" if spoken.tool_calls else "stop"
    spoken.finish_reason = finish
    return spoken


async def read_completion(
    choice: JSONObject,
    ids: CallIds,
    *,
    parser: ToolCallParser | None = None,
    tools: Sequence[JSONObject] = (),
    reasoning_open: bool | None = None,
    id_seed: str = "",
) -> Spoken:
    """Do as :func:`read_message`, in a thread if a parser has a long text to read."""
    read = partial(
        read_message,
        choice,
        ids,
        parser=parser,
        tools=tools,
        reasoning_open=reasoning_open,
        id_seed=id_seed,
    )
    content = choice["message"].get("content")
    if parser is None or not isinstance(content, str) or len(content) <= LONG_TEXT_CHARS:
        return read()
    return await anyio.to_thread.run_sync(read, limiter=_parsing)


def read_usage(data: JSONObject, config: ServerConfig) -> Usage:
    """Read token counts and cost; prices of the configuration where the server says no cost."""
    usage = data.get("usage")
    if not isinstance(usage, dict):
        return Usage()
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cost = usage.get("cost")
    if not isinstance(cost, int | float) or isinstance(cost, bool):
        prompt_price = config.prompt_cost_usd_per_mtok or 0.0
        completion_price = config.completion_cost_usd_per_mtok or 0.0
        cost = (prompt * prompt_price + completion * completion_price) / 1e6
    cached = _count(usage.get("prompt_tokens_details"), "cached_tokens")
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached or _count(usage, "prompt_cache_hit_tokens"),
        reasoning_tokens=_count(usage.get("completion_tokens_details"), "reasoning_tokens"),
        cost_usd=float(cost),
    )


def split_think(text: str) -> tuple[str | None, str | None]:
    """Split text into (reasoning, rest) at a leading ``<think>`` block.

    The opening tag may be missing (templates open it in the prompt) and so may the closing one (the
    turn was cut). Text without such a block is returned unchanged as the rest.
    """
    head, opened, body = text.partition("<think>")
    if not opened or head.strip():
        reasoning, closed, rest = text.partition("</think>")
        if not closed or "<think>" in reasoning:
            return None, text
    else:
        reasoning, _, rest = body.partition("</think>")
    return reasoning.strip() or None, rest.strip() or None


def _count(fields: object, key: str) -> int:
    value = fields.get(key) if isinstance(fields, dict) else None
    return value if isinstance(value, int) and value > 0 else 0


def _read_content(message: JSONObject) -> str | None:
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if _is_text(part))
    if not content:
        content = message.get("refusal")
    return content if isinstance(content, str) and content else None


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _read_reasoning(message: JSONObject, spoken: Spoken) -> None:
    details = message.get("reasoning_details")
    spoken.reasoning_details = details if isinstance(details, list) and details else None
    sources: tuple[ReasoningSource, ...] = ("reasoning_content", "reasoning")
    for source in sources:
        text = message.get(source)
        if isinstance(text, str) and text.strip():
            spoken.reasoning, spoken.reasoning_source = text, source
            return
    spoken.reasoning = _details_text(details) or _thinking_parts(message.get("content"))
    if spoken.reasoning and spoken.reasoning_details:
        spoken.reasoning_source = "reasoning"


def _details_text(details: object) -> str | None:
    """Join what is readable in OpenRouter's ``reasoning_details``."""
    entries = details if isinstance(details, list) else []
    texts = [entry.get("text") or entry.get("summary") for entry in entries if _is_object(entry)]
    return "\n".join(text for text in texts if isinstance(text, str)) or None


def _thinking_parts(content: object) -> str | None:
    """Join ``{"type": "thinking", "thinking": [{"type": "text", ...}]}`` parts (Mistral)."""
    parts = content if isinstance(content, list) else []
    inner = [
        piece
        for part in parts
        if _is_object(part) and isinstance(part.get("thinking"), list)
        for piece in part["thinking"]
    ]
    return "".join(piece["text"] for piece in inner if _is_text(piece)) or None


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _read_calls(message: JSONObject, ids: CallIds, spoken: Spoken) -> None:
    calls = message.get("tool_calls") or []
    for entry in calls if isinstance(calls, list) else [calls]:
        function = entry.get("function") if isinstance(entry, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not name.strip():
            raw = orjson.dumps(entry).decode()
            spoken.invalid_calls.append(InvalidCall("The tool call has no function name.", raw))
            continue
        arguments = _arguments_text(function.get("arguments"))
        spoken.tool_calls.append(ToolCall(ids.unique(entry.get("id")), name.strip(), arguments))


def _arguments_text(arguments: object) -> str:
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return "{}" if arguments is None else orjson.dumps(arguments).decode()


def _take_over(parsed: ParseResult, spoken: Spoken, ids: CallIds) -> None:
    """Fill in what a parser found; text behind the calls stays in ``raw_text`` only.

    In the content it would stand in front of the calls when the turn is rendered again.
    """
    spoken.raw_text, spoken.markers = spoken.content, parsed.markers
    spoken.content = parsed.content
    if spoken.reasoning is None and parsed.reasoning:
        spoken.reasoning, spoken.reasoning_source = parsed.reasoning, "content"
    spoken.tool_calls += [
        ToolCall(ids.unique(call.id), call.name, call.arguments) for call in parsed.tool_calls or ()
    ]
    spoken.invalid_calls += parsed.invalid
