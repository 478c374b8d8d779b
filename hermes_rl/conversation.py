"""A conversation of model and tools: its turns, its limits, and what is done about bad calls.

One turn is one model call and the tool calls it asked for. The limits, in the order in which
they are checked before every model call (the first that holds ends the rollout):

1. ``max_turns``         model calls that produced a turn     -> MAX_TURNS
2. ``deadline_s``        wall clock of the run                -> WALL_CLOCK
3. ``max_token_length``  tokens of the sequence so far        -> TOKEN_LIMIT
4. ``max_cost_usd``      cost of all turns                    -> COST_LIMIT

After a turn was sampled, again in order:

5. a turn stopped by a content filter ends the rollout, and its calls are not run
6. the turn's calls are run, also those of the last turn that a limit allows; then a limit that
   the session met (``Completion.stop``) ends the rollout
7. ``max_invalid_calls`` turns in a row with malformed calls only -> INVALID_CALLS
8. no call at all: cut by length -> TOKEN_LIMIT, else FINISHED

The wall clock does not wait for a check: it also cuts off the model call or tool call in flight.
What had been said and done is kept. Waiting for permits and retries is no work: it is reported in
``timings.waiting_s``, and the wall clock stands still meanwhile, for ``waiting_allowance_s`` in
all. A run that was cut off after waiting for longer than that ends with MODEL_ERROR, not with
WALL_CLOCK: it says nothing about the agent. A limit of None is no limit.

Of one turn at most ``max_calls_per_turn`` calls are run; each of the others is answered with an
error that says so.

Malformed calls: one with a name is answered like a tool call (synthetic id, the reason as its
result); those without a name are answered by one user message.

Counters in ``AgentResult.counters``: ``tool_calls``, ``surplus_calls`` (beyond
``max_calls_per_turn``), ``unknown_tools``, ``invalid_arguments`` (no JSON object),
``invalid_<code>`` by :attr:`~hermes_rl.types.InvalidCall.code`, ``marker_without_call`` (turns in
whose text a parser saw the mark of a call but no call, valid or not: the wrong parser, perhaps),
``interrupted_calls``, ``truncated_turns`` (cut by length), ``compactions``, and ``forks`` (model
calls that did not extend the sequence before, where the session counts them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from hermes_rl.calls import CallRunner, count, failed, record_error, tool_message
from hermes_rl.errors import ModelProtocolError
from hermes_rl.model.protocol import ModelSession
from hermes_rl.types import (
    AgentResult,
    Completion,
    InvalidCall,
    Message,
    StopReason,
    Timings,
    ToolCall,
    ToolResult,
)
from hermes_rl.work_deadline import WorkDeadline

__all__ = ["AgentLimits", "Clock", "Compact", "Conversation"]

Clock = Callable[[], float]
"""Seconds, monotonic."""
Compact = Callable[[list[Message]], list[Message]]
"""Given what the model sees, returns what it shall see instead: the same list for no change, or a
new one. The messages themselves must not be changed in place."""


@dataclass(slots=True, frozen=True, kw_only=True)
class AgentLimits:
    """What ends a run besides its deadline; None = no limit. See the module for the order."""

    max_turns: int = 30
    max_token_length: int | None = None
    max_cost_usd: float | None = None
    max_invalid_calls: int = 3


class Conversation:
    """One run of the loop: what was said so far, and what the model sees of it.

    Args:
        limits: What ends it.
        calls: Runs the tool calls.
        deadline: Ends it too, also in the middle of a call.
        compact: Shortens what the model sees; None = it sees everything.
        clock: Seconds, monotonic.
        result: Filled as the conversation goes on; its messages are the opening.
    """

    def __init__(
        self,
        limits: AgentLimits,
        calls: CallRunner,
        deadline: WorkDeadline,
        compact: Compact | None,
        clock: Clock,
        result: AgentResult,
    ) -> None:
        self._limits = limits
        self._calls = calls
        self._deadline = deadline
        self._compact = compact
        self._clock = clock
        self._result = result
        self._shown = result.messages
        self._sequence_tokens = 0
        self._invalid_turns = 0

    async def run(self, session: ModelSession) -> StopReason:
        """Take turns until there is a reason to stop.

        Raises:
            ModelError: The model's API failed.
            SandboxError: The sandbox failed.
            ToolFault: A tool broke by our fault.
        """
        while True:
            reason = self._limit_reached() or await self._turn(session)
            if reason is not None:
                return reason

    def _limit_reached(self) -> StopReason | None:
        limits, result = self._limits, self._result
        if result.turns_used >= limits.max_turns:
            return StopReason.MAX_TURNS
        if self._deadline.is_over:
            return StopReason.WALL_CLOCK
        if limits.max_token_length is not None and self._sequence_tokens >= limits.max_token_length:
            return StopReason.TOKEN_LIMIT
        if limits.max_cost_usd is not None and result.usage.cost_usd >= limits.max_cost_usd:
            return StopReason.COST_LIMIT
        return None

    async def _turn(self, session: ModelSession) -> StopReason | None:
        """Run one turn; return why it was the last, or None."""
        completion = await self._complete(session)
        if completion.message is None:
            if completion.stop is None:
                raise ModelProtocolError("The model session returned neither a turn nor a stop.")
            return completion.stop
        named = self._take(completion)
        if completion.stop is StopReason.CONTENT_FILTER:
            calls = [*completion.tool_calls, *(call for call, _ in named)]
            self._calls.refuse(calls, self._result)
            return completion.stop
        malformed = await self._run_calls(completion, named)
        if completion.stop is not None:
            return completion.stop
        asked = len(completion.tool_calls) + len(completion.invalid_calls)
        if asked == 0:
            was_cut = completion.finish_reason == "length"
            return StopReason.TOKEN_LIMIT if was_cut else StopReason.FINISHED
        self._invalid_turns = self._invalid_turns + 1 if malformed == asked else 0
        if self._invalid_turns >= self._limits.max_invalid_calls:
            return StopReason.INVALID_CALLS
        return None

    async def _complete(self, session: ModelSession) -> Completion:
        if self._compact is not None:
            shown = self._compact(self._shown)
            if shown is not self._shown:
                self._shown = shown
                count(self._result, "compactions")
        deadline, started_at = self._deadline, self._clock()
        waited_s = deadline.waited_s
        try:
            completion = await session.complete(self._shown)
            if not isinstance(completion, Completion):
                kind = type(completion).__name__
                raise ModelProtocolError(f"The model session returned a {kind}, no Completion.")
            # A session may know better than what it said while it waited, or not have said it.
            deadline.note(max(0.0, completion.timings.waiting_s - (deadline.waited_s - waited_s)))
        finally:
            waiting_s = deadline.waited_s - waited_s
            model_s = max(0.0, self._clock() - started_at - waiting_s)
            self._result.timings += Timings(model_s=model_s, waiting_s=waiting_s)
        self._result.usage += completion.usage
        self._sequence_tokens = completion.usage.prompt_tokens + completion.usage.completion_tokens
        return completion

    def _take(self, completion: Completion) -> list[tuple[ToolCall, InvalidCall]]:
        """Append the assistant message; return the malformed calls that have a name."""
        result = self._result
        result.turns_used += 1
        result.reasoning_per_turn.append(completion.reasoning)
        if completion.finish_reason == "length":
            count(result, "truncated_turns")
        if completion.markers and not (completion.tool_calls or completion.invalid_calls):
            count(result, "marker_without_call")
        named = [
            (
                ToolCall(f"call_invalid_{result.turns_used}_{index}", invalid.name, invalid.raw),
                invalid,
            )
            for index, invalid in enumerate(completion.invalid_calls)
            if invalid.name
        ]
        message = cast(Message, completion.message)
        if named:
            calls = [*(message.get("tool_calls") or ()), *(call.to_openai() for call, _ in named)]
            message = {**message, "tool_calls": calls}
        self._append(message)
        return named

    async def _run_calls(
        self, completion: Completion, named: Sequence[tuple[ToolCall, InvalidCall]]
    ) -> int:
        """Run the turn's calls and answer the malformed ones; return how many were malformed."""
        result, malformed = self._result, len(completion.invalid_calls)
        known = len(result.messages)
        try:
            if completion.tool_calls:
                malformed += await self._calls.run(completion.tool_calls, result)
        finally:
            for call, invalid in named:
                answer = failed(f"Malformed tool call: {invalid.reason}")
                record_error(result, call, answer)
                result.messages.append(tool_message(call, answer))
            self._answer_nameless(completion.invalid_calls)
            if self._shown is not result.messages:
                self._shown += result.messages[known:]
        return malformed

    def _answer_nameless(self, invalid_calls: Sequence[InvalidCall]) -> None:
        for invalid in invalid_calls:
            count(self._result, f"invalid_{invalid.code}")
        nameless = [invalid for invalid in invalid_calls if not invalid.name]
        if not nameless:
            return
        reasons = "\n".join(f"- {invalid.reason}" for invalid in nameless)
        text = f"A tool call in your last message could not be read:\n{reasons}\nWrite it again."
        for invalid in nameless:
            record_error(
                self._result, ToolCall("", "", invalid.raw), ToolResult(text, invalid.reason)
            )
        self._result.messages.append({"role": "user", "content": text})

    def _append(self, message: Message) -> None:
        self._result.messages.append(message)
        if self._shown is not self._result.messages:
            self._shown.append(message)
