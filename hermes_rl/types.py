"""Plain data that the whole library shares. Messages are plain OpenAI chat dictionaries.

A message list is append-only: every part of the library relies on earlier messages never being
changed in place, so that each is serialised once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hermes_rl.packed import packed_floats, packed_ints

__all__ = [
    "AgentResult",
    "Completion",
    "FunctionCall",
    "InvalidCall",
    "JSONObject",
    "Message",
    "ParseResult",
    "Reward",
    "StopReason",
    "Timings",
    "TokenSequence",
    "ToolCall",
    "ToolCallParser",
    "ToolError",
    "ToolResult",
    "Usage",
]

JSONObject = dict[str, Any]
"""A decoded JSON object."""
Message = dict[str, Any]
"""An OpenAI chat message: ``role``, ``content`` and, by role, ``tool_calls``, ``tool_call_id``,
``name``, ``reasoning_content``."""


@dataclass(slots=True, frozen=True)
class FunctionCall:
    """``name`` and ``arguments`` (JSON text) as the OpenAI objects have them."""

    name: str
    arguments: str


@dataclass(slots=True, frozen=True)
class ToolCall:
    """One call that a model asked for.

    Attributes:
        id: Unique within the conversation.
        name: Tool name as the model wrote it; may be unknown.
        arguments: JSON text. From a parser always a JSON object; from a server whatever it sent.
    """

    id: str
    name: str
    arguments: str

    @property
    def function(self) -> FunctionCall:
        """The same call in the shape of ``openai.types.chat``."""
        return FunctionCall(self.name, self.arguments)

    def to_openai(self) -> JSONObject:
        """Return the wire form used in an assistant message's ``tool_calls``."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@dataclass(slots=True, frozen=True)
class InvalidCall:
    """A tool call that could not be understood. Data, never an exception.

    Attributes:
        reason: One sentence for the model, e.g. ``arguments are not valid JSON: ...``.
        raw: The model's text of this call.
        name: Tool name, if it could be read.
        kind: ``structure`` (markers, nesting, truncation) or ``content`` (arguments, name).
        position: Character offset of ``raw`` in the parsed text.
        code: The same as ``reason`` in one stable word, for counters: ``truncated``, ``json``,
            ``name``, ``id``, ``arguments``, ``malformed``.
    """

    reason: str
    raw: str
    name: str | None = None
    kind: Literal["structure", "content"] = "structure"
    position: int = 0
    code: str = "malformed"


@dataclass(slots=True, frozen=True)
class ParseResult:
    """What a tool-call parser found. Unpacks as ``(content, tool_calls)``.

    Attributes:
        content: Text before the first call, stripped, None if empty; the text unchanged if
            there was no valid call.
        tool_calls: Valid calls in order, None if there is none.
        reasoning: Text of the reasoning block, None if there is none.
        trailing: Text between and after the calls, "" if none.
        invalid: Calls that were meant but malformed.
        markers: How many call markers were seen (with or without a call behind them).
    """

    content: str | None
    tool_calls: list[ToolCall] | None
    reasoning: str | None = None
    trailing: str = ""
    invalid: tuple[InvalidCall, ...] = ()
    markers: int = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield ``content`` and ``tool_calls``."""
        yield self.content
        yield self.tool_calls


class ToolCallParser(Protocol):
    """Turns the raw text of a model into content and tool calls; one per model family."""

    name: str

    def parse(
        self,
        text: str,
        tools: Sequence[JSONObject] | None = None,
        finish_reason: str | None = None,
        *,
        reasoning_open: bool | None = None,
        id_seed: str = "",
    ) -> ParseResult:
        """Parse one whole completion. Never raises on any text; linear in its length.

        Args:
            text: Raw text as sampled.
            tools: Tool schemas in OpenAI form; drive types where the format is untyped.
            finish_reason: ``stop`` or ``length``, if known.
            reasoning_open: Whether the prompt ended inside an open reasoning block. None = not
                known: a lone closing tag is taken to close one.
            id_seed: Makes generated call ids unique, e.g. rollout and turn; ids are a function
                of this, the text and the call's index only.
        """
        ...


class StopReason(enum.StrEnum):
    """Why an agent stopped.

    Limits are not errors: the rollout counts as the model's in every case but the last four.
    """

    FINISHED = "finished"
    """The model answered without a tool call."""
    MAX_TURNS = "max_turns"
    WALL_CLOCK = "wall_clock"
    """The agent's deadline passed."""
    TOKEN_LIMIT = "token_limit"
    """The sequence budget (``max_token_length``) is used up."""
    COST_LIMIT = "cost_limit"
    CONTEXT_LENGTH = "context_length"
    """The server refused the prompt as too long."""
    INVALID_CALLS = "invalid_calls"
    """Too many malformed tool calls in a row."""
    CONTENT_FILTER = "content_filter"
    SANDBOX_BROKEN = "sandbox_broken"
    """The agent itself broke its sandbox (out of memory, killed PID 1, full disk)."""
    TOOL_FAULT = "tool_fault"
    """A tool broke by our fault."""
    MODEL_ERROR = "model_error"
    SANDBOX_LOST = "sandbox_lost"
    CANCELLED = "cancelled"


@dataclass(slots=True, frozen=True)
class Usage:
    """Tokens and money of one or more model calls; ``a + b`` adds."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    requests: int = 0
    """HTTP requests sent, retries included."""

    def __add__(self, other: Usage) -> Usage:
        """Add field by field."""
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cost_usd + other.cost_usd,
            self.requests + other.requests,
        )


@dataclass(slots=True, frozen=True)
class Timings:
    """Seconds spent; ``a + b`` adds. Waiting (for a permit, a retry, a sandbox slot) is no work."""

    model_s: float = 0.0
    tool_s: float = 0.0
    waiting_s: float = 0.0

    def __add__(self, other: Timings) -> Timings:
        """Add field by field."""
        return Timings(
            self.model_s + other.model_s,
            self.tool_s + other.tool_s,
            self.waiting_s + other.waiting_s,
        )


@dataclass(slots=True, frozen=True)
class Completion:
    """One turn of a model.

    Attributes:
        message: The assistant message to append (``role``, ``content``, ``tool_calls``,
            ``reasoning_content``); None when ``stop`` says that there was no turn at all.
        tool_calls: Valid calls, in order; the same as in ``message``.
        invalid_calls: Malformed calls.
        reasoning: Reasoning text, None if none.
        finish_reason: ``stop``, ``tool_calls``, ``length`` ... as normalised by the client.
        usage: Tokens of this call.
        timings: Model and waiting seconds of this call.
        stop: A limit that the session met (TOKEN_LIMIT, CONTEXT_LENGTH, CONTENT_FILTER).
        raw_text: The sampled text before parsing, when the client parsed it itself.
        markers: Call markers in that text, see :class:`ParseResult`.
    """

    message: Message | None
    tool_calls: tuple[ToolCall, ...] = ()
    invalid_calls: tuple[InvalidCall, ...] = ()
    reasoning: str | None = None
    finish_reason: str = "stop"
    usage: Usage = Usage()
    timings: Timings = Timings()
    stop: StopReason | None = None
    raw_text: str | None = None
    markers: int = 0


@dataclass(slots=True)
class TokenSequence:
    """One exact token sequence of a rollout (token-exact clients only).

    Invariant: the three sequences have equal length; ``masked_tokens`` is -100 and ``logprobs``
    is 1.0 exactly where the policy did not sample. Whatever sequences they are made of, they are
    kept packed (:mod:`hermes_rl.packed`).

    Attributes:
        tokens: Token ids, prompt and samples, in the order the server saw them.
        masked_tokens: The same with -100 for what the policy did not sample.
        logprobs: Log-probability (nats) of each sampled id; 1.0 elsewhere.
        metadata: Finish reasons, weight versions, forks, the server's logprob mode.
    """

    tokens: Sequence[int]
    masked_tokens: Sequence[int]
    logprobs: Sequence[float]
    metadata: JSONObject = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Pack the sequences and check the length invariant."""
        self.tokens = packed_ints(self.tokens)
        self.masked_tokens = packed_ints(self.masked_tokens)
        self.logprobs = packed_floats(self.logprobs)
        if not len(self.tokens) == len(self.masked_tokens) == len(self.logprobs):
            raise ValueError("tokens, masked_tokens and logprobs must have equal length")


@dataclass(slots=True, frozen=True)
class ToolResult:
    """What a tool call returned to the model.

    Attributes:
        content: Text (usually JSON), or a list of OpenAI content parts.
        error: What went wrong, None if nothing did; also inside ``content``.
    """

    content: str | list[JSONObject]
    error: str | None = None


@dataclass(slots=True, frozen=True)
class ToolError:
    """A failed tool call, kept for statistics.

    Attributes:
        turn: 1-based model turn.
        tool_name: As the model wrote it.
        arguments: JSON text, cut to 1,000 characters.
        error: One sentence.
        tool_result: What the model was told, cut to 1,000 characters.
    """

    turn: int
    tool_name: str
    arguments: str
    error: str
    tool_result: str


@dataclass(slots=True)
class AgentResult:
    """What one agent did.

    Attributes:
        messages: The whole conversation, system prompt included.
        turns_used: Model calls that produced a turn.
        finished_naturally: ``stop_reason is StopReason.FINISHED``.
        reasoning_per_turn: One entry per turn, None where there was none.
        tool_errors: Failed calls.
        managed_state: ``{"nodes": [{tokens, masked_tokens, logprobs, metadata}]}`` from
            token-exact clients, else None; the first three as in :class:`TokenSequence`.
        stop_reason: Why it ended.
        usage: Tokens and cost of all turns.
        timings: Seconds by kind.
        error: Text of the failure behind SANDBOX_BROKEN, TOOL_FAULT, MODEL_ERROR, SANDBOX_LOST.
        counters: Named counts (calls, invalid calls by reason, forks ...).
    """

    messages: list[Message]
    turns_used: int = 0
    finished_naturally: bool = False
    reasoning_per_turn: list[str | None] = field(default_factory=list)
    tool_errors: list[ToolError] = field(default_factory=list)
    managed_state: JSONObject | None = None
    stop_reason: StopReason = StopReason.FINISHED
    usage: Usage = field(default_factory=Usage)
    timings: Timings = field(default_factory=Timings)
    error: str | None = None
    counters: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Reward:
    """A score with its evidence.

    Attributes:
        value: The reward, usually in [0, 1].
        evidence: JSON-able facts behind it (verifier output, per-test results ...).
        flags: Reasons to distrust a pass, e.g. ``tamper_suspect: /usr/bin/curl``. A flag never
            removes a rollout from the denominator.
    """

    value: float
    evidence: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
