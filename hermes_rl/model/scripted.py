"""Models that follow a script: deterministic tests, and a task's own solution.

A script is a function from the conversation so far to the next turn; :func:`replay` makes one
from a fixed list of turns.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import orjson

from hermes_rl.model.protocol import Sampling
from hermes_rl.types import Completion, JSONObject, Message, TokenSequence, ToolCall, Usage

__all__ = [
    "Script",
    "ScriptedModel",
    "Turn",
    "call",
    "nop_model",
    "random_model",
    "replay",
    "say",
]

RANDOM_TURNS = 3
"""Commands per rollout of :func:`random_model`."""
_COMMANDS = ("cat /etc/hostname", "date", "echo", "env", "false", "ls", "uname")
_OPERANDS = ("-l", "-a", ".", "/etc/passwd", "~", "x", "0", "| wc -l", "> ~/out.txt")

Turn = Completion
Script = Callable[[Sequence[Message]], Turn]

_call_numbers = itertools.count(1)


def say(text: str) -> Turn:
    """Return a turn that only speaks, which ends a rollout."""
    return Completion(message={"role": "assistant", "content": text}, usage=Usage(requests=1))


def call(name: str, arguments: Mapping[str, Any] | str, *, text: str = "") -> Turn:
    """Return a turn with one tool call.

    Args:
        name: Tool name.
        arguments: Arguments, or raw text to send as they are (malformed on purpose).
        text: Content beside the call.
    """
    encoded = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    tool_call = ToolCall(f"call_{next(_call_numbers)}", name, encoded)
    message: Message = {
        "role": "assistant",
        "content": text or None,
        "tool_calls": [tool_call.to_openai()],
    }
    return Completion(
        message=message,
        tool_calls=(tool_call,),
        finish_reason="tool_calls",
        usage=Usage(requests=1),
    )


def replay(turns: Sequence[Turn], *, end: str = "Done.") -> Script:
    """Return a script that plays ``turns`` by position in the conversation, then says ``end``."""

    def next_turn(messages: Sequence[Message]) -> Turn:
        spoken = sum(message["role"] == "assistant" for message in messages)
        return turns[spoken] if spoken < len(turns) else say(end)

    return next_turn


class _ScriptedSession:
    sequences: Sequence[TokenSequence] = ()

    def __init__(self, script: Script) -> None:
        self._script = script

    async def complete(self, messages: Sequence[Message]) -> Completion:
        await anyio.lowlevel.checkpoint()
        return self._script(messages)


class ScriptedModel:
    """A :class:`~hermes_rl.model.ChatModel` that follows ``script``."""

    def __init__(self, script: Script, *, name: str = "scripted") -> None:
        self.name = name
        self.context_tokens: int | None = None
        self._script = script

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[_ScriptedSession]:
        """Open a session; ``tools``, ``sampling`` and ``seed`` are ignored."""
        yield _ScriptedSession(self._script)


def nop_model() -> ScriptedModel:
    """Return the model that does nothing at all: the floor of every benchmark."""
    return ScriptedModel(replay([], end=""), name="nop")


def random_model(seed: int = 0) -> ScriptedModel:
    """Return a model that runs random harmless commands whatever it is asked, then stops.

    A negative control: a reward above 0 for it is a fault of the reward. The commands depend on
    ``seed``, the conversation's first user message and the turn only.
    """

    def next_turn(messages: Sequence[Message]) -> Turn:
        spoken = sum(message["role"] == "assistant" for message in messages)
        if spoken >= RANDOM_TURNS:
            return say("Done.")
        asked = next((m["content"] for m in messages if m["role"] == "user"), "")
        rng = random.Random(f"{seed}:{spoken}:{asked}")
        words = [rng.choice(_COMMANDS), *rng.choices(_OPERANDS, k=rng.randint(1, 3))]
        return call("terminal", {"command": " ".join(words)})

    return ScriptedModel(next_turn, name="random")
