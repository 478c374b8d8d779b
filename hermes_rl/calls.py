"""The tool calls of one turn: run, timed, recorded and always answered.

Every call of an assistant message gets exactly one tool message, in the order of the calls,
whatever happens: a call that was cut off, or never started because an earlier one ended the
rollout, is answered with a note that says so. A conversation is well-formed at every moment.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Sequence

import anyio
import orjson

from hermes_rl.author_code import failure_text
from hermes_rl.errors import HermesRLError, ToolFault
from hermes_rl.tools.protocol import Dispatcher
from hermes_rl.types import AgentResult, Message, Timings, ToolCall, ToolError, ToolResult

__all__ = ["MAX_CALLS_PER_TURN", "CallRunner", "count", "failed", "record_error", "tool_message"]

_KEPT_CHARACTERS = 1000
"""Of arguments and results in a :class:`ToolError`: enough to see what went wrong."""
_CUT_OFF = "The call was cut off: the rollout ended while it ran."
_NOT_RUN = "The call was not run: the rollout ended before it."
"""Such a call is no failure of its tool and is not kept among the tool errors."""
MAX_CALLS_PER_TURN = 32
"""Far more than any sensible turn holds; a model that repeats itself writes hundreds."""


def count(result: AgentResult, name: str, amount: int = 1) -> None:
    """Add ``amount`` to the counter ``name`` of ``result``."""
    result.counters[name] = result.counters.get(name, 0) + amount


def record_error(result: AgentResult, call: ToolCall, answer: ToolResult) -> None:
    """Keep a failed call in ``result.tool_errors``, cut to a size that is safe to keep."""
    content = answer.content
    shown = content if isinstance(content, str) else orjson.dumps(content).decode()
    result.tool_errors.append(
        ToolError(
            turn=result.turns_used,
            tool_name=call.name,
            arguments=call.arguments[:_KEPT_CHARACTERS],
            error=answer.error or "",
            tool_result=shown[:_KEPT_CHARACTERS],
        )
    )


def failed(error: str) -> ToolResult:
    """Return the result that tells the model about ``error``."""
    return ToolResult(orjson.dumps({"error": error}).decode(), error)


def tool_message(call: ToolCall, answer: ToolResult) -> Message:
    """Return the message that answers ``call``."""
    return {
        "role": "tool",
        "tool_call_id": call.id,
        "name": call.name,
        "content": answer.content,
    }


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


class CallRunner:
    """Runs the calls of one turn after another on the rollout's tools.

    Args:
        tools: The rollout's dispatcher.
        valid_tool_names: Names the model may use; any other is answered with an error.
        parallel: Neighbouring calls of read-only tools run together.
        max_calls: Calls of one turn that are run; the others are answered with an error.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        tools: Dispatcher | None,
        valid_tool_names: Collection[str],
        *,
        parallel: bool,
        clock: Callable[[], float],
        max_calls: int = MAX_CALLS_PER_TURN,
    ) -> None:
        self._tools = tools
        self._valid = frozenset(valid_tool_names)
        self._parallel = parallel
        self._max_calls = max_calls
        self._clock = clock

    async def run(self, calls: Sequence[ToolCall], result: AgentResult) -> int:
        """Run ``calls`` and record them in ``result``; appends their messages to it.

        Cancelling kills the call in flight; the messages are appended all the same.

        Returns:
            How many of the calls were malformed: arguments that are no JSON object.

        Raises:
            SandboxError: The sandbox failed.
            ToolFault: A tool broke by our fault.
        """
        answers: list[ToolResult | None] = [None] * len(calls)
        running: set[int] = set()
        malformed = result.counters.get("invalid_arguments", 0)
        note, started_at = _CUT_OFF, self._clock()
        if self._tools is not None:
            self._tools.begin_turn()
        try:
            for batch in self._batches(calls[: self._max_calls]):
                await self._run_batch(batch, calls, answers, running)
            self._refuse_surplus(answers, result)
        except HermesRLError as error:
            note = str(error)
            raise
        finally:
            result.timings += Timings(tool_s=self._clock() - started_at)
            count(result, "tool_calls", len(calls))
            for index, (call, answer) in enumerate(zip(calls, answers, strict=True)):
                why = note if index in running else _NOT_RUN
                result.messages.append(self._record(call, answer, why, result))
        return result.counters.get("invalid_arguments", 0) - malformed

    def _refuse_surplus(self, answers: list[ToolResult | None], result: AgentResult) -> None:
        surplus = len(answers) - self._max_calls
        if surplus <= 0:
            return
        refusal = failed(
            f"Not run: one message may hold at most {self._max_calls} tool calls. Read the results "
            "of the first ones, then call again."
        )
        answers[self._max_calls :] = [refusal] * surplus
        count(result, "surplus_calls", surplus)

    def refuse(self, calls: Sequence[ToolCall], result: AgentResult) -> None:
        """Answer ``calls`` without running them."""
        for call in calls:
            result.messages.append(self._record(call, None, _NOT_RUN, result))

    def _batches(self, calls: Sequence[ToolCall]) -> Iterator[range]:
        """Yield the positions to run together: runs of read-only calls, else one by one."""
        start = 0
        while start < len(calls):
            end = start + 1
            if self._parallel and self._is_read_only(calls[start]):
                while end < len(calls) and self._is_read_only(calls[end]):
                    end += 1
            yield range(start, end)
            start = end

    def _is_read_only(self, call: ToolCall) -> bool:
        return (
            self._tools is not None
            and call.name in self._valid
            and self._tools.is_read_only(call.name)
        )

    async def _run_batch(
        self,
        batch: range,
        calls: Sequence[ToolCall],
        answers: list[ToolResult | None],
        running: set[int],
    ) -> None:
        if len(batch) == 1:
            running.add(batch.start)
            answers[batch.start] = await self._run_one(calls[batch.start])
            return
        failures: list[HermesRLError] = []

        async def run_beside(index: int) -> None:
            running.add(index)
            try:
                answers[index] = await self._run_one(calls[index])
            except HermesRLError as error:
                failures.append(error)
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for index in batch:
                group.start_soon(run_beside, index)
        if failures:
            raise failures[0]

    async def _run_one(self, call: ToolCall) -> ToolResult:
        if self._tools is None or call.name not in self._valid:
            return self._unknown(call.name)
        try:
            return await self._tools.call(call.name, call.arguments, call.id)
        except HermesRLError:
            raise
        except (Exception, SystemExit) as error:  # tools of others may raise anything
            raise ToolFault(
                f"Tool {call.name!r} broke: {failure_text(error)}. Report this as a bug of the "
                "tool; the rollout is errored, not scored."
            ) from error

    def _unknown(self, name: str) -> ToolResult:
        near = difflib.get_close_matches(name, self._valid, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(sorted(self._valid)) or "none"
        return failed(f"Unknown tool {name!r}.{hint} Available tools: {known}.")

    def _record(
        self, call: ToolCall, answer: ToolResult | None, note: str, result: AgentResult
    ) -> Message:
        is_failure = answer is not None or note is not _NOT_RUN
        if answer is None:
            answer = failed(note)
            count(result, "interrupted_calls")
        elif answer.error is not None:
            if call.name not in self._valid:
                count(result, "unknown_tools")
            elif not _is_json_object(call.arguments):
                count(result, "invalid_arguments")
        if answer.error is not None and is_failure:
            record_error(result, call, answer)
        return tool_message(call, answer)
