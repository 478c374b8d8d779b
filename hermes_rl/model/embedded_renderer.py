"""A plain-text transcript for base models that know no chat template.

::

    System: ...
    User: ...
    Assistant: seq 3 5
    <tool_call>
    {"name": "terminal", "arguments": {"command": "seq 3 5 > list"}}
    </tool_call>
    Tool: {"output": "", "exit_code": 0, "error": null}
    Assistant: Done.

It opens with a list of the tools and a few finished conversations
(:mod:`hermes_rl.model.embedded_preamble`), from which the model learns the format. A base model has
no token that ends a turn: a turn ends with ``</tool_call>``, else with an empty line or the name of
the next speaker.

No text is ever read as a control token. Each addition is tokenised by itself, so that extending a
conversation is the definition of rendering it, not an approximation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import orjson

from hermes_rl.model.embedded_preamble import CALL_END, CALL_START, preamble
from hermes_rl.types import JSONObject, Message

__all__ = ["EmbeddedRenderer", "Tokenizer"]

TURN_GAP = "\n\n"
_SPEAKERS = {"user": "User:", "assistant": "Assistant:", "tool": "Tool:", "system": "System:"}
_NEXT_SPEAKER = tuple(f"\n{name}" for name in _SPEAKERS.values())


class Tokenizer(Protocol):
    """The tokenizer of the model that is sampled from."""

    @property
    def end_ids(self) -> Collection[int]:
        """Tokens that have ended a turn so far."""
        ...

    async def tokenize(self, text: str) -> list[int]:
        """Return the ids of ``text``; names of control tokens in it stay text."""
        ...

    async def opening(self) -> list[int]:
        """Return the ids that every prompt begins with (BOS)."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``."""
        ...


class EmbeddedRenderer:
    """See the module; a :class:`~hermes_rl.model.Renderer`."""

    cuts_turns = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    async def start(self, messages: Sequence[Message], tools: Sequence[JSONObject]) -> list[int]:
        """Return preamble and conversation, up to where the assistant speaks."""
        parts = [preamble(tools), "".join(map(_spoken, messages)) + _SPEAKERS["assistant"]]
        ids = await self._tokenizer.opening()
        for part in parts:
            ids += await self._tokenizer.tokenize(part)
        return ids

    async def extend(self, turn: Sequence[int], new_messages: Sequence[Message]) -> list[int]:
        """Return the new messages as they follow the turn; this template can always be extended."""
        ended = await self._tokenizer.detokenize(turn)
        follows_call = bool(new_messages) and new_messages[0].get("role") == "tool"
        gap = "\n" if follows_call else TURN_GAP
        missing = gap.removeprefix(gap[: _newlines_at_end(ended)])
        text = missing + "".join(map(_spoken, new_messages)) + _SPEAKERS["assistant"]
        return await self._tokenizer.tokenize(text)

    async def turn_end(self, turn: Sequence[int], *, searched: int = 0) -> int | None:
        """Return where the turn ends: after the first id that completes an end."""
        low, high = searched, len(turn)
        if not has_ended(await self._tokenizer.detokenize(turn)):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            if has_ended(await self._tokenizer.detokenize(turn[:middle])):
                high = middle
            else:
                low = middle
        return high

    async def read(self, turn: Sequence[int]) -> str:
        """Return the turn's text without the white space, name or token that ended it."""
        ended = bool(turn) and turn[-1] in self._tokenizer.end_ids
        text = await self._tokenizer.detokenize(turn[:-1] if ended else turn)
        for name in _NEXT_SPEAKER:
            text = text.partition(name)[0]
        return text.strip()


def has_ended(text: str) -> bool:
    """Say whether a turn that begins with ``text`` is over. Once over, it stays so."""
    said, _, called = text.partition(CALL_START)
    return TURN_GAP in said or CALL_END in called or any(name in text for name in _NEXT_SPEAKER)


def _newlines_at_end(text: str) -> int:
    return len(text) - len(text.rstrip("\n"))


def _spoken(message: Message) -> str:
    """Return a message as the transcript has it, with what separates it from the next."""
    role = str(message.get("role"))
    name = _SPEAKERS.get(role, f"{role.capitalize()}:")
    text = _text(message)
    calls = message.get("tool_calls") or []
    for call in calls:
        function = call["function"]
        written = f'{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}'
        text += f"\n{CALL_START}\n{written}\n{CALL_END}"
    is_over = role == "system" or (role == "assistant" and not calls)
    return f"{name} {text.strip()}{TURN_GAP if is_over else chr(10)}"


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else "" if content is None else _json(content)


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
