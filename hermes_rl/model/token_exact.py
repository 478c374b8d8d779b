"""Sampling with exact tokens: what a trainer gets is what the model saw and produced.

A :class:`TokenExactModel` is a :class:`Renderer` (messages to ids), a :class:`TokenServer` (ids to
ids) and a tool-call parser. Text is made from ids, never ids from text that was sampled. The
invariants are held by the types:

* a turn's prompt is (previous prompt + previous sampled ids + new ids), because
  :class:`ExactTokens` can only grow by whole turns, and a server's echo is compared with it;
* every sampled id has its log-probability (:class:`Sample`);
* what the policy did not sample is masked with -100 and has logprob 1.0.

A conversation that does not extend the one before, or a template that cannot be extended, starts a
new sequence: a *fork*, counted, never an error. Stop strings are never used: servers cut text and
log-probabilities there, but not ids. Where a model has no end-of-turn token, a turn is sampled in
pieces and cut after the first token that completes its end; the ids behind it are thrown away.
Pieces and no stream, because llama.cpp's stream leaves out the ids of tokens that end within a
character (measured: four tokens sampled, one reported).
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from hermes_rl.config import ServerConfig
from hermes_rl.errors import ModelProtocolError
from hermes_rl.model.budget import MIN_COMPLETION_TOKENS, Allowance
from hermes_rl.model.failures import PromptTooLong
from hermes_rl.model.protocol import HistoryRenderer, Renderer, Sampling
from hermes_rl.model.reply import CallIds, read_completion, read_usage
from hermes_rl.model.retry import Retrier, Spent
from hermes_rl.model.sample import ExactTokens, Sample, TokenServer
from hermes_rl.packed import Packed, packed_ints
from hermes_rl.parsers.format import Format
from hermes_rl.types import (
    Completion,
    JSONObject,
    Message,
    StopReason,
    TokenSequence,
    ToolCallParser,
    Usage,
)

__all__ = ["TokenExactModel", "TokenExactSession"]

PIECE_TOKENS = 16
"""Tokens sampled at a time where turns are cut: half of them, on average, are thrown away."""


OPENING_TOKENS = 16
"""Of a prompt's end, in which the opening of a reasoning block is looked for."""


class TokenExactModel:
    """A :class:`~hermes_rl.model.ChatModel` with exact tokens.

    Args:
        server: Samples.
        renderer: Of the server's model.
        parser: Reads tool calls out of the text of a turn.
        retrier: The one retry layer, with the limiter of this server.
        config: Holds prices and the time limit of one request.
        name: For reports; None = the server's.
    """

    def __init__(
        self,
        server: TokenServer,
        renderer: Renderer,
        *,
        parser: ToolCallParser,
        retrier: Retrier,
        config: ServerConfig,
        name: str | None = None,
    ) -> None:
        self.server = server
        self.renderer = renderer
        self.parser = parser
        self.retrier = retrier
        self.config = config
        self.name = name or server.name

    @property
    def context_tokens(self) -> int | None:
        """Context window: as configured, at most what the server has."""
        known = (self.config.context_tokens, self.server.context_tokens)
        return min((tokens for tokens in known if tokens is not None), default=None)

    @asynccontextmanager
    async def session(
        self, *, tools: Sequence[JSONObject], sampling: Sampling, seed: int | None = None
    ) -> AsyncIterator[TokenExactSession]:
        """Open the conversation of one rollout. ``sampling.extra_body`` plays no part."""
        yield TokenExactSession(self, tools=tools, sampling=sampling, seed=seed)


class TokenExactSession:
    """One rollout's conversation; see :class:`~hermes_rl.model.ModelSession`.

    Attributes:
        forks: Times a new sequence had to be begun.
    """

    def __init__(
        self,
        model: TokenExactModel,
        *,
        tools: Sequence[JSONObject],
        sampling: Sampling,
        seed: int | None,
    ) -> None:
        self.forks = 0
        self._model = model
        self._tools = tools
        self._sampling = sampling
        self._seed = seed
        self._segments: list[ExactTokens] = []
        self._shown: list[Message] = []
        self._calls = 0
        self._ids = CallIds()

    @property
    def sequences(self) -> Sequence[TokenSequence]:
        """One sequence per segment; more than one only after forks."""
        metadata: JSONObject = {
            "forks": self.forks,
            "logprob_mode": self._model.server.logprob_mode,
            "temperature": self._sampling.temperature,
        }
        return [segment.to_sequence(metadata) for segment in self._segments]

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Sample the next turn; see :meth:`hermes_rl.model.ModelSession.complete`."""
        self._calls += 1
        turn = _Turn(
            self._model,
            messages,
            tools=self._tools,
            sampling=self._sampling,
            segment=self._extended_segment(messages),
            shown=len(self._shown),
            seed=_derived_seed(self._seed, self._calls),
        )
        spent = Spent()
        try:
            stop = await self._model.retrier.run(turn.attempt, spent)
        except PromptTooLong:
            stop = StopReason.CONTEXT_LENGTH
        if turn.sample is None:
            return _stopped(stop, turn, spent)
        if turn.segment is None:
            self.forks += bool(self._segments)
            turn.segment = ExactTokens()
            self._segments.append(turn.segment)
        turn.segment.add_turn(turn.new_ids, turn.sample)
        completion = await self._read(turn, stop, spent)
        self._shown = [*messages, completion.message or {}]
        return completion

    def _extended_segment(self, messages: Sequence[Message]) -> ExactTokens | None:
        """Return the segment that ``messages`` extend, None if they extend none."""
        shown = self._shown
        if not shown or len(messages) < len(shown):
            return None
        *earlier, said = shown
        same = all(old is new or old == new for old, new in zip(earlier, messages, strict=False))
        same = same and _is_same_turn(said, messages[len(earlier)])
        return self._segments[-1] if same else None

    async def _read(self, turn: _Turn, stop: StopReason | None, spent: Spent) -> Completion:
        assert turn.sample is not None
        text, sample = turn.text, turn.sample
        spoken = await read_completion(
            {"message": {"content": text}, "finish_reason": sample.finish},
            self._ids,
            parser=self._model.parser,
            tools=self._tools,
            reasoning_open=turn.reasoning_open,
            id_seed=f"{self._seed}:{self._calls}",
        )
        return Completion(
            message=spoken.to_message(),
            tool_calls=tuple(spoken.tool_calls),
            invalid_calls=tuple(spoken.invalid_calls),
            reasoning=spoken.reasoning,
            finish_reason=spoken.finish_reason,
            usage=turn.usage(),
            timings=spent.timings,
            # Whole calls of a turn that ends at the context's end shall run; the next stops.
            stop=None if stop is StopReason.CONTEXT_LENGTH and spoken.tool_calls else stop,
            raw_text=text,
            markers=spoken.markers,
        )


def _is_same_turn(said: Message, kept: Message) -> bool:
    """Say whether ``kept`` is the turn as sampled.

    The agent loop may have added calls to it: one that was malformed but has a name is answered
    like any other, under an id of its own.
    """
    if said is kept:
        return True
    calls = said.get("tool_calls") or []
    return _without_calls(said) == _without_calls(kept) and (
        (kept.get("tool_calls") or [])[: len(calls)] == calls
    )


def _without_calls(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "tool_calls"}


class _Turn:
    """One call: render, sample, read. A repeated attempt goes on from what is already sampled.

    Attributes:
        segment: The segment to extend, None = begin a new one.
        new_ids: Prompt ids that follow the segment.
        sample: The turn, None until it is whole.
        text: The turn's text without its end token.
        reasoning_open: Whether its prompt ended inside a reasoning block; None = not known.
    """

    def __init__(
        self,
        model: TokenExactModel,
        messages: Sequence[Message],
        *,
        tools: Sequence[JSONObject],
        sampling: Sampling,
        segment: ExactTokens | None,
        shown: int,
        seed: int | None,
    ) -> None:
        self.segment = segment
        self.new_ids = packed_ints(())
        self.sample: Sample | None = None
        self.text = ""
        self.reasoning_open: bool | None = None
        self._model = model
        self._messages = messages
        self._tools = tools
        self._sampling = sampling
        self._shown = shown
        self._seed = seed
        self._so_far: Sample | None = None
        self._requests = 0
        self._prompt_tokens = 0

    async def attempt(self, remaining_s: float) -> StopReason | None:
        """Fill :attr:`sample`, or return the limit that is already reached.

        Returns:
            The limit that cut the turn or left no room for one, None if none did.
        """
        if not self.new_ids:
            await self._render()
        prompt = self.segment.tokens + self.new_ids if self.segment else self.new_ids
        self._prompt_tokens = len(prompt)
        allowance = self._allowance()
        if allowance is None:
            return self._exhausted()
        self.reasoning_open = await self._opens_reasoning(prompt)
        sample = await self._sample(prompt, allowance.max_tokens, remaining_s)
        self.text = await self._model.renderer.read(sample.ids)
        self.sample = sample
        if sample.finish != "length":
            return None
        ours = allowance.max_tokens is not None and len(sample.ids) >= allowance.max_tokens
        return allowance.stop if ours else StopReason.CONTEXT_LENGTH

    def usage(self) -> Usage:
        """Return what the turn cost; ids that were thrown away are not counted."""
        if self.sample is None:
            return Usage(requests=self._requests)
        cached = {"cached_tokens": self.sample.cached_tokens}
        fields = {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": len(self.sample.ids),
            "prompt_tokens_details": cached,
        }
        return replace(read_usage({"usage": fields}, self._model.config), requests=self._requests)

    async def _render(self) -> None:
        if self.segment is not None:
            delta = await self._extension(self.segment)
            if delta is not None:
                self.new_ids = packed_ints(delta)
                return
            self.segment = None
        started = await self._model.renderer.start(self._messages, self._tools)
        self.new_ids = packed_ints(started)

    async def _extension(self, segment: ExactTokens) -> list[int] | None:
        renderer, turn = self._model.renderer, segment.last_turn
        new_messages = self._messages[self._shown :]
        if not isinstance(renderer, HistoryRenderer):
            return await renderer.extend(turn, new_messages)
        return await renderer.extend_history(
            turn,
            new_messages,
            history=self._messages[: self._shown],
            tools=self._tools,
            ended=segment.last_finish == "stop",
        )

    async def _opens_reasoning(self, prompt: Sequence[int]) -> bool | None:
        """Say whether a prompt ends with what opens a reasoning block of the parser's family."""
        renderer, parser = self._model.renderer, self._model.parser
        if renderer.cuts_turns or not isinstance(parser, Format) or not parser.reasoning_tags:
            return None
        end = (await renderer.read(prompt[-OPENING_TOKENS:])).rstrip()
        return any(end.endswith(tags.open) for tags in parser.reasoning_tags)

    def _rooms(self) -> list[tuple[int, StopReason]]:
        """Return how many tokens each limit of the whole sequence leaves."""
        limits = (
            (self._sampling.max_token_length, StopReason.TOKEN_LIMIT),
            (self._model.context_tokens, StopReason.CONTEXT_LENGTH),
        )
        return [(limit - self._prompt_tokens, stop) for limit, stop in limits if limit is not None]

    def _exhausted(self) -> StopReason | None:
        return next((stop for room, stop in self._rooms() if room < MIN_COMPLETION_TOKENS), None)

    def _allowance(self) -> Allowance | None:
        """Return the turn's bound, None if a limit leaves no room for a turn."""
        if self._exhausted() is not None:
            return None
        chosen = Allowance(self._sampling.max_tokens_per_turn)
        for room, stop in self._rooms():
            if chosen.max_tokens is None or room < chosen.max_tokens:
                chosen = Allowance(room, stop)
        return chosen

    async def _sample(
        self, prompt: Packed[int], max_tokens: int | None, remaining_s: float
    ) -> Sample:
        renderer = self._model.renderer
        if not renderer.cuts_turns:
            return await self._generate(prompt, max_tokens, remaining_s)
        while True:
            done = self._so_far.ids if self._so_far else ()
            left = PIECE_TOKENS if max_tokens is None else min(PIECE_TOKENS, max_tokens - len(done))
            piece = await self._generate(prompt + done, left, remaining_s)
            self._so_far = turn = self._so_far.then(piece) if self._so_far else piece
            end = await renderer.turn_end(turn.ids, searched=len(done))
            if end is not None:
                return turn.first(end)
            if piece.finish != "length" or len(piece.ids) < left or len(turn.ids) == max_tokens:
                return turn

    async def _generate(
        self, prompt: Packed[int], max_tokens: int | None, remaining_s: float
    ) -> Sample:
        self._requests += 1
        done = len(self._so_far.ids) if self._so_far else 0
        sample = await self._model.server.generate(
            prompt,
            max_tokens=max_tokens,
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            seed=_derived_seed(self._seed, done),
            timeout_s=min(float(self._model.config.timeout), remaining_s),
        )
        if sample.prompt_ids is not None and sample.prompt_ids != prompt:
            raise ModelProtocolError(
                f"{self._model.server.name} says that it saw another prompt than the one sent "
                f"({len(sample.prompt_ids)} ids instead of {len(prompt)}, or other ones)."
            )
        return sample


def _derived_seed(seed: int | None, number: int) -> int | None:
    """Return a seed for one call of a session or one piece of a turn; any server takes it."""
    if seed is None:
        return None
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


def _stopped(stop: StopReason | None, turn: _Turn, spent: Spent) -> Completion:
    return Completion(
        message=None,
        finish_reason="length",
        usage=turn.usage(),
        timings=spent.timings,
        stop=stop,
    )
