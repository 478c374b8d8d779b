"""Renders with a Hugging Face chat template, and extends what was sampled turn by turn.

A sampled turn is never rendered again: it stays in the sequence as it was sampled. What follows it
is taken from renderings of the whole conversation:

* once with stand-ins for the end of the turn and for the first new message, which show the
  template's own text between them, and in it the token that ends the turn;
* once as it is, which must say the same behind the turn and must not have changed before it.

Where it has changed (a template that moves the tools to the last user message, that numbers or
merges messages, that ends a turn otherwise than the model did), there is no extension: ``None``,
for which the caller begins a new sequence and counts a fork.

Text meets text only at control tokens. Where a template puts none behind a turn, the extension is
compared with the tokens of the whole, and a difference is a fork as well.

Reasoning of earlier turns: by default the model goes on seeing what it sampled, although most
templates drop it at the next user message; this is no fork. Without ``keeps_reasoning`` the
template decides, and a sampled turn whose reasoning it leaves out is a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio
import anyio.to_thread

from hermes_rl.errors import ModelRejected
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.model.hf_tokenizer import MARK, ChatTokenizer, unmarked
from hermes_rl.types import JSONObject, Message

__all__ = ["HFRenderer"]

T = TypeVar("T")
TURN_END = "qzturnqz"
"""Stands for the last text of a sampled turn. Words that no template looks for or trims."""
NEW_TEXT = "qznewqz"
"""Stands for the text of the first new message."""
SHORT_TURN_TOKENS = 2_000
"""Decoded on the event loop, which takes less than a millisecond."""
REASONING_OPENINGS = ("<think>", "[THINK]", "<seed:think>", "<longcat_think>")
"""With which generation prompts open a block that later renderings leave out."""

_rendering = LoopLimiter(2)
"""Threads that render templates (Python) and tokenise (not Python)."""


class HFRenderer:
    """See the module; a :class:`~hermes_rl.model.protocol.HistoryRenderer`.

    Args:
        tokenizer: With the template.
        keeps_reasoning: Whether past reasoning stays in view, see the module.
    """

    cuts_turns = False

    def __init__(self, tokenizer: ChatTokenizer, *, keeps_reasoning: bool = True) -> None:
        self._tokenizer = tokenizer
        self._keeps_reasoning = keeps_reasoning
        self._end_ids = {tokenizer.eos_id, _template_end(tokenizer)} - {None}

    async def start(self, messages: Sequence[Message], tools: Sequence[JSONObject]) -> list[int]:
        """Return the whole opening; see :class:`~hermes_rl.model.Renderer`.

        Raises:
            ModelRejected: The template has no form for this conversation.
        """
        return await _in_thread(lambda: self._start(messages, tools))

    async def extend(
        self, turn: Sequence[int], new_messages: Sequence[Message]
    ) -> list[int] | None:
        """Return None: without the conversation nothing can be compared."""
        return None

    async def extend_history(
        self,
        turn: Sequence[int],
        new_messages: Sequence[Message],
        *,
        history: Sequence[Message],
        tools: Sequence[JSONObject],
        ended: bool,
    ) -> list[int] | None:
        """Return what follows ``turn``; see :class:`~hermes_rl.model.protocol.HistoryRenderer`."""
        step = _Step(turn, list(history), list(new_messages), list(tools), ended)
        return await _in_thread(lambda: self._extend(step))

    async def turn_end(self, turn: Sequence[int], *, searched: int = 0) -> int | None:
        """Never asked: turns end with a token."""
        return None

    async def read(self, turn: Sequence[int]) -> str:
        """Return the turn's text without its end token."""
        kept = turn[:-1] if turn and turn[-1] in self._end_ids else turn
        if len(kept) <= SHORT_TURN_TOKENS:
            return self._tokenizer.decode(kept)
        return await _in_thread(lambda: self._tokenizer.decode(kept))

    def render_text(self, messages: Sequence[Message], tools: Sequence[JSONObject]) -> str:
        """Return the template's text, for checks at start; blocks."""
        return unmarked(self._tokenizer.render(messages, tools, generation_prompt=False))

    def _start(self, messages: Sequence[Message], tools: Sequence[JSONObject]) -> list[int]:
        marked = self._tokenizer.render(messages, tools, generation_prompt=True)
        return self._tokenizer.encode(marked)

    def _extend(self, step: _Step) -> list[int] | None:
        if not step.history:
            return None
        try:
            follows = self._follows(step)
            if follows is None or not self._agrees(step, follows.text):
                return None
        except ModelRejected:
            return None
        return self._joined(step, follows)

    def _follows(self, step: _Step) -> _Follows | None:
        """Return what the template writes behind the turn's last token, None if it cannot be told.

        The stand-in for the new message shows how far the template's own text goes: the turn's end
        is looked for only there, so that nothing in a message is taken for it.
        """
        tokenizer = self._tokenizer
        stood = [*step.history[:-1], _stand_in(step.said)]
        probed = tokenizer.render(
            [*stood, *_with_new_text(step.new)], step.tools, generation_prompt=True
        )
        actual = tokenizer.render([*stood, *step.new], step.tools, generation_prompt=True)
        limit = probed.find(NEW_TEXT) if step.new else len(probed)
        start = probed.rfind(TURN_END, 0, max(limit, 0)) + len(TURN_END)
        if limit < 0 or start < len(TURN_END):
            return None
        between = probed[start:limit]
        last = tokenizer.control_name(step.turn[-1]) if step.turn else None
        cut = self._cut(between, last, calls=bool(step.said.get("tool_calls")), ended=step.ended)
        if cut is None or not actual.startswith(probed[: start + cut]):
            return None
        is_last = last is not None and between[:cut].endswith(last)
        return _Follows(actual[start + cut :], anchor=last if is_last else None)

    def _cut(self, between: str, last: str | None, *, calls: bool, ended: bool) -> int | None:
        """Return where in the text behind the turn's last text the sampled turn ends.

        Args:
            between: From there to the first new message.
            last: The turn's last token if it is a control token.
            calls: Whether the turn's last text is inside a call, which is still to be closed.
            ended: Whether the model ended the turn by itself.
        """
        at = between.find(last) if last else -1
        if last and (at >= 0 if calls else at == 0):
            return at + len(last)
        if last and ended:
            return None
        if not calls:
            return 0
        names = [self._tokenizer.control_name(end) for end in self._end_ids if end is not None]
        found = [between.find(name) for name in names if name]
        return min((place for place in found if place >= 0), default=None)

    def _agrees(self, step: _Step, follows: str) -> bool:
        """Say whether the conversation as a whole is rendered as the sequence so far and this."""
        history = step.history
        if self._keeps_reasoning:
            history = [_without_reasoning(message) for message in history]
        tokenizer, tools = self._tokenizer, step.tools
        before = tokenizer.render(history[:-1], tools, generation_prompt=False)
        prompt = tokenizer.render(history[:-1], tools, generation_prompt=True)
        whole = tokenizer.render([*history, *step.new], tools, generation_prompt=True)
        if not (whole.startswith(before) and prompt.startswith(before)):
            return False
        head = _without_opening(prompt[len(before) :])
        reasoning = history[-1].get("reasoning_content")
        is_shown = not reasoning or str(reasoning).strip() in unmarked(whole)
        return is_shown and whole.startswith(head, len(before)) and whole.endswith(follows)

    def _joined(self, step: _Step, follows: _Follows) -> list[int] | None:
        """Return the ids of ``follows`` as they are behind the turn."""
        tokenizer = self._tokenizer
        if follows.anchor is not None:
            # Encoded behind its control token: some tokenizers treat a text's beginning specially.
            return tokenizer.encode(follows.anchor + follows.text)[1:]
        ids = tokenizer.encode(follows.text)
        if follows.text.startswith(MARK):
            return ids
        together = tokenizer.encode(tokenizer.decode(step.turn) + follows.text)
        return ids if together == [*step.turn, *ids] else None


class _Step:
    """One extension to be made."""

    def __init__(
        self,
        turn: Sequence[int],
        history: list[Message],
        new: list[Message],
        tools: list[JSONObject],
        ended: bool,
    ) -> None:
        self.turn = turn
        self.history = history
        self.new = new
        self.tools = tools
        self.ended = ended

    @property
    def said(self) -> Message:
        """The message that was read out of the turn."""
        return self.history[-1]


class _Follows:
    """Marked text behind a turn; ``anchor`` is the turn's end token if it ends with one."""

    def __init__(self, text: str, *, anchor: str | None) -> None:
        self.text = text
        self.anchor = anchor


def _stand_in(said: Message) -> Message:
    """Return ``said`` with a word that can be found again as the last text of the turn."""
    stood = _without_reasoning(said)
    calls = stood.get("tool_calls")
    if not calls:
        return {**stood, "content": TURN_END}
    last = calls[-1]
    function = {**last["function"], "arguments": f'{{"value": "{TURN_END}"}}'}
    return {**stood, "tool_calls": [*calls[:-1], {**last, "function": function}]}


def _with_new_text(new: Sequence[Message]) -> list[Message]:
    return [{**new[0], "content": NEW_TEXT}, *new[1:]] if new else []


def _without_reasoning(message: Message) -> Message:
    left_out = ("reasoning_content", "reasoning_details")
    return {key: value for key, value in message.items() if key not in left_out}


def _without_opening(prompt: str) -> str:
    """Return a generation prompt up to where it opens a reasoning block."""
    places = [prompt.find(opening) for opening in REASONING_OPENINGS]
    place = min((found for found in places if found >= 0), default=None)
    return prompt if place is None else prompt[:place].removesuffix(MARK)


def _template_end(tokenizer: ChatTokenizer) -> int | None:
    """Return the control token that the template puts behind an assistant's words."""
    spoken = [{"role": "user", "content": NEW_TEXT}, {"role": "assistant", "content": TURN_END}]
    try:
        text = tokenizer.render([*spoken, spoken[0]], (), generation_prompt=False)
    except ModelRejected:
        return None
    _, found, behind = text.partition(TURN_END)
    return tokenizer.control_id(behind.lstrip()) if found else None


async def _in_thread(work: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(work, limiter=_rendering)
