"""A session's messages as they go over the wire, each encoded once.

What differs from the stored messages:

- Reasoning is left out or sent back, as ``reasoning_in_history`` says (:class:`WireFormat`).
- Arguments of past tool calls that are no JSON object are sent as ``{}``: servers answer HTTP 400
  to others. The stored message keeps the model's text.
- Absent content is ``null`` beside tool calls and ``""`` elsewhere; other nulls are left out.
- Text that is no valid Unicode (lone surrogates) has U+FFFD in place of what is invalid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import anyio.lowlevel
import orjson

from hermes_rl.errors import ModelRejected
from hermes_rl.types import JSONObject, Message

__all__ = ["ReasoningInHistory", "ReasoningSource", "WireFormat", "WireHistory", "valid_unicode"]

ReasoningInHistory = Literal["auto", "keep", "drop"]
ReasoningSource = Literal["reasoning_content", "reasoning", "content"]
"""Where a server puts reasoning text: one of two fields, or ``<think>`` inside the content."""

PART_BYTES = 512 * 1024
"""Encoded at once; then the event loop gets a turn."""
_REASONING_KEYS = frozenset({"reasoning", "reasoning_content", "reasoning_details"})


class WireFormat:
    """Turns stored messages into the dictionaries that are sent.

    ``auto`` sends ``reasoning_details`` back verbatim in messages that came out of this session
    and drops all other reasoning; ``keep`` also sends reasoning text, in the way in which the
    server sent it; ``drop`` sends none.
    """

    def __init__(self, reasoning_in_history: ReasoningInHistory = "auto") -> None:
        self._policy = reasoning_in_history
        self._own_details: dict[int, object] = {}
        self._source: ReasoningSource = "reasoning_content"

    def remember(self, message: Message, source: ReasoningSource) -> None:
        """Note that ``message`` came from this server, with its reasoning text in ``source``."""
        if message.get("reasoning_content"):
            self._source = source
        details = message.get("reasoning_details")
        if details:
            # By identity: the agent may copy the message around them, and holding them here keeps
            # the ids from being reused.
            self._own_details[id(details)] = details

    def to_wire(self, message: Message) -> JSONObject:
        """Return the dictionary to send for ``message``, which stays as it is."""
        wire = {
            key: value
            for key, value in message.items()
            if value is not None and key not in _REASONING_KEYS
        }
        calls = message.get("tool_calls")
        if calls:
            wire["tool_calls"] = [_replayable(call) for call in calls]
        wire.setdefault("content", None if calls else "")
        if message.get("role") == "assistant" and self._policy != "drop":
            self._add_reasoning(wire, message)
        return wire

    def _add_reasoning(self, wire: JSONObject, message: Message) -> None:
        details = message.get("reasoning_details")
        if details and (self._policy == "keep" or id(details) in self._own_details):
            wire["reasoning_details"] = details
        text = message.get("reasoning_content") or message.get("reasoning")
        if not text or self._policy != "keep":
            return
        if self._source != "content":
            wire[self._source] = text
        elif isinstance(wire["content"], str | None):
            wire["content"] = f"<think>\n{text}\n</think>\n\n{wire['content'] or ''}"


def _replayable(call: JSONObject) -> JSONObject:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str) and _is_json_object(arguments):
        return call
    return {**call, "function": {**function, "arguments": "{}"}}


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


class WireHistory:
    """The growing conversation as encoded messages.

    Attributes:
        pieces: One JSON text per message, all but the first with a comma before it: together the
            inside of a JSON list.
        size_bytes: Of all pieces together.
        forks: Times a call's messages did not extend those of the call before.
    """

    def __init__(self, wire_format: WireFormat) -> None:
        self.pieces: list[bytes] = []
        self.size_bytes = 0
        self.forks = 0
        self._format = wire_format
        self._messages: list[Message] = []

    async def update(self, messages: Sequence[Message]) -> None:
        """Make the history that of ``messages``; encodes only what is new, a part at a time.

        Raises:
            ModelRejected: A message holds something that JSON cannot express.
        """
        kept = self._common(messages)
        if kept < len(self._messages):
            self.forks += 1
            self.size_bytes -= sum(map(len, self.pieces[kept:]))
            del self.pieces[kept:], self._messages[kept:]
        since_pause = 0
        for index in range(kept, len(messages)):
            piece = (b"," if index else b"") + _encode(self._format.to_wire(messages[index]), index)
            self.pieces.append(piece)
            self._messages.append(messages[index])
            self.size_bytes += len(piece)
            since_pause += len(piece)
            if since_pause > PART_BYTES:
                since_pause = 0
                await anyio.lowlevel.checkpoint()

    def wire_messages(self) -> list[JSONObject]:
        """Return the conversation as the dictionaries that the pieces encode."""
        return [self._format.to_wire(message) for message in self._messages]

    def _common(self, messages: Sequence[Message]) -> int:
        """Return how many leading messages are those already encoded."""
        for index, (old, new) in enumerate(zip(self._messages, messages, strict=False)):
            if old is not new and old != new:
                return index
        return min(len(self._messages), len(messages))


def _encode(wire: JSONObject, index: int) -> bytes:
    try:
        return orjson.dumps(wire)
    except TypeError:
        pass
    try:
        return orjson.dumps(valid_unicode(wire))
    except TypeError as error:
        raise ModelRejected(
            f"Message {index} ({wire.get('role')}) cannot be sent as JSON: {error}"
        ) from None


def valid_unicode(value: Any) -> Any:
    """Return JSON data with U+FFFD in place of lone surrogates."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {valid_unicode(key): valid_unicode(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [valid_unicode(item) for item in value]
    return value
