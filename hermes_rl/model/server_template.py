"""A model's own chat template, rendered and tokenised by the server that runs the model.

What follows a sampled turn is rendered with all that came before, a mark in the place of the turn,
and cut off behind the mark. So it begins with the token that ends a turn: that token is left out
where the model sampled its end itself, and kept (it is then not sampled, and masked) where the turn
was cut by length. A template that renders differently what came before, or does not let itself be
cut there, is not extended: the caller renders afresh and counts a fork.

Text of messages never becomes a control token. Where a message holds the name of one, a character
that occurs nowhere else is put into the name before rendering. Afterwards the text between the
template's own control tokens is tokenised without that character, and with control tokens off.

A template without a place for tools gets them in the system message, in the Hermes form.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import orjson

from hermes_rl.errors import ModelRejected
from hermes_rl.model.wire import WireFormat
from hermes_rl.types import JSONObject, Message

__all__ = ["ServerTemplate", "TemplateRefused", "TemplateServer"]

TURN = "\ue0f5turn\ue0f5"
"""Stands for a sampled turn: private characters, which no template looks at."""
PRIVATE_CHARACTERS = range(0xE100, 0xF8FF)
PROBE_TOOL: JSONObject = {
    "type": "function",
    "function": {
        "name": "probe_of_template",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
    },
}
_NOT_TEXT = frozenset({"role", "type", "id", "tool_call_id"})


class TemplateRefused(ModelRejected):
    """The template raised an error for these messages."""


class TemplateServer(Protocol):
    """A server that renders and tokenises for the model it runs."""

    @property
    def end_ids(self) -> Collection[int]:
        """Tokens that have ended a turn so far."""
        ...

    async def render(
        self, messages: Sequence[JSONObject], tools: Sequence[JSONObject], *, prompt: bool = True
    ) -> str:
        """Return the conversation without BOS.

        Args:
            messages: As sent in a chat completion.
            tools: Schemas.
            prompt: Whether to go on to where the assistant speaks.

        Raises:
            TemplateRefused: The template raised an error.
        """
        ...

    async def tokenize(self, text: str, *, control: bool = False) -> list[int]:
        """Return the ids of ``text``; names of control tokens are those only with ``control``."""
        ...

    async def opening(self) -> list[int]:
        """Return the ids that every prompt begins with (BOS)."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, control tokens included."""
        ...


class ServerTemplate:
    """See the module; a :class:`~hermes_rl.model.protocol.HistoryRenderer`."""

    cuts_turns = False

    def __init__(self, server: TemplateServer) -> None:
        self._server = server
        self._wire = WireFormat("keep")
        self._names: dict[int, str | None] = {}
        self._takes_tools: bool | None = None

    async def start(self, messages: Sequence[Message], tools: Sequence[JSONObject]) -> list[int]:
        """Return the whole opening; see :class:`~hermes_rl.model.Renderer`.

        Raises:
            TemplateRefused: The template has no form for this conversation.
        """
        shown, private = await self._guarded(messages)
        if tools and not await self._has_place_for_tools():
            shown, tools = _with_tools_as_text(shown, tools), ()
        rendered = await self._server.render(shown, tools)
        return [*await self._server.opening(), *await self._encode(rendered, private)]

    async def extend(
        self, turn: Sequence[int], new_messages: Sequence[Message]
    ) -> list[int] | None:
        """Return what follows ``turn`` in any conversation; see :meth:`extend_history`."""
        return await self.extend_history(
            turn,
            new_messages,
            history=({"role": "user", "content": "-"}, {"role": "assistant"}),
            tools=(),
            ended=bool(turn) and turn[-1] in self._server.end_ids,
        )

    async def extend_history(
        self,
        turn: Sequence[int],
        new_messages: Sequence[Message],
        *,
        history: Sequence[Message],
        tools: Sequence[JSONObject],
        ended: bool,
    ) -> list[int] | None:
        """Return what follows ``turn``, None if the template lets nothing follow it.

        That is so where it changes what came before the turn, raises an error, or does not end
        turns with a control token.
        """
        shown, private = await self._guarded([*history[:-1], *new_messages])
        before, new = shown[: len(history) - 1], shown[len(history) - 1 :]
        if tools and not await self._has_place_for_tools():
            before, tools = _with_tools_as_text(before, tools), ()
        try:
            was = await self._server.render(before, tools, prompt=False)
            now = await self._server.render(
                [*before, {"role": "assistant", "content": TURN}, *new], tools
            )
        except TemplateRefused:
            return None
        head, *tail = now.split(TURN)
        if len(tail) != 1 or not head.startswith(was):
            return None
        ids = await self._encode(tail[0], private)
        if not ids or await self._control_name(ids[0]) is None:
            return None
        return ids[1:] if ended else ids

    async def turn_end(self, turn: Sequence[int], *, searched: int = 0) -> int | None:
        """Never asked: turns of such a model end with a token."""
        return None

    async def read(self, turn: Sequence[int]) -> str:
        """Return the turn's text without its end token."""
        ended = bool(turn) and turn[-1] in self._server.end_ids
        return await self._server.detokenize(turn[:-1] if ended else turn)

    async def _has_place_for_tools(self) -> bool:
        if self._takes_tools is None:
            rendered = await self._server.render([{"role": "user", "content": "-"}], [PROBE_TOOL])
            self._takes_tools = PROBE_TOOL["function"]["name"] in rendered
        return self._takes_tools

    async def _guarded(self, messages: Sequence[Message]) -> tuple[list[JSONObject], str]:
        """Return the messages to render, and the character that was put into control names."""
        shown = [self._wire.to_wire(message) for message in messages]
        whole = "\n".join(_texts(shown))
        names = await self._control_names(whole)
        private = next(char for char in map(chr, PRIVATE_CHARACTERS) if char not in whole)

        def guard(text: str) -> str:
            for name in names:
                text = text.replace(name, f"{name[0]}{private}{name[1:]}")
            return text

        # A name inside another one may come to light only once that is broken up.
        while names:
            shown = _map_texts(shown, guard)
            names = await self._control_names("\n".join(_texts(shown)))
        return shown, private

    async def _encode(self, rendered: str, private: str) -> list[int]:
        ids = await self._server.tokenize(rendered, control=True)
        if private not in rendered:
            return ids
        names = await self._control_names(rendered)
        encoded: list[int] = []
        between: list[int] = []
        position = 0
        for token_id in ids:
            name = self._names.get(token_id)
            if name is None or name not in names:
                between.append(token_id)
                continue
            end = rendered.index(name, position)
            encoded += await self._between(rendered[position:end], between, private)
            encoded.append(token_id)
            between, position = [], end + len(name)
        return encoded + await self._between(rendered[position:], between, private)

    async def _between(self, text: str, ids: list[int], private: str) -> list[int]:
        """Return the ids of text between control tokens; ``ids`` are right if it held no name."""
        if private not in text:
            return ids
        return await self._server.tokenize(text.replace(private, ""))

    async def _control_names(self, text: str) -> list[str]:
        """Return the names of the control tokens that ``text`` would be read as."""
        read = set(await self._server.tokenize(text, control=True))
        suspects = read.difference(await self._server.tokenize(text)) if read else ()
        names = [await self._control_name(token_id) for token_id in suspects]
        return sorted((name for name in names if name), key=len, reverse=True)

    async def _control_name(self, token_id: int) -> str | None:
        """Return what a control token is written as, None if it is an ordinary token."""
        if token_id not in self._names:
            name = await self._server.detokenize([token_id])
            is_control = await self._server.tokenize(name, control=True) == [
                token_id
            ] and await self._server.tokenize(name) != [token_id]
            self._names[token_id] = name if is_control else None
        return self._names[token_id]


def _texts(messages: list[JSONObject]) -> list[str]:
    texts: list[str] = []

    def keep(text: str) -> str:
        texts.append(text)
        return text

    _map_texts(messages, keep)
    return texts


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return ``value`` with all texts of messages changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {
            key: item if key in _NOT_TEXT else _map_texts(item, change)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_map_texts(item, change) for item in value]
    return value


def _with_tools_as_text(
    messages: Sequence[JSONObject], tools: Sequence[JSONObject]
) -> list[JSONObject]:
    """Return the messages with the tools at the end of the system message."""
    listed = "\n".join(orjson.dumps(tool).decode() for tool in tools)
    text = (
        "You have the tools that are listed below. To use one, write:\n"
        '<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>\n'
        f"The next message is its result.\n<tools>\n{listed}\n</tools>"
    )
    has_system = bool(messages) and messages[0].get("role") == "system"
    said = messages[0].get("content") if has_system else ""
    system = {"role": "system", "content": f"{said}\n\n{text}" if said else text}
    return [system, *(messages[1:] if has_system else messages)]
