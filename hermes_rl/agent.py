"""The agent loop: model and tools in turn, until the model stops or a limit is reached.

What a turn is, which limits end a run, in which order they are checked, and what happens to
malformed calls is said in :mod:`hermes_rl.conversation`.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import anyio

from hermes_rl.author_code import failure_text
from hermes_rl.calls import MAX_CALLS_PER_TURN, CallRunner, count
from hermes_rl.conversation import AgentLimits, Clock, Compact, Conversation
from hermes_rl.errors import (
    ConfigError,
    HermesRLError,
    ModelError,
    ModelTransient,
    SandboxError,
    SandboxGone,
    ToolFault,
)
from hermes_rl.model.protocol import ChatModel, ModelSession, Sampling
from hermes_rl.tools.protocol import Dispatcher
from hermes_rl.types import (
    AgentResult,
    JSONObject,
    Message,
    StopReason,
)
from hermes_rl.work_deadline import WorkDeadline

if TYPE_CHECKING:
    from hermes_rl.model.adapter import SupportsChatCompletion

__all__ = ["HermesAgentLoop"]


class HermesAgentLoop:
    """Runs one agent: model and tools in turn. May be run again; one run at a time.

    Args:
        server: A :class:`~hermes_rl.model.ModelSession` (used as it is: sampling arguments were
            given when it was opened), a :class:`~hermes_rl.model.ChatModel` (one session is
            opened per run), or any object with ``chat_completion(**kwargs)``.
        tool_schemas: Tools in OpenAI form, shown to the model.
        valid_tool_names: Names it may call.
        max_turns: Model calls.
        task_id: Names the rollout to the tools of the legacy shim.
        temperature: Sampling temperature.
        max_tokens: Cap on one completion, in tokens.
        extra_body: Extra request fields.
        tools: Runs the calls; None = hermes-agent's, in this process
            (:func:`hermes_rl.legacy.legacy_dispatcher`).
        deadline_s: Wall seconds for the whole run.
        waiting_allowance_s: Seconds of waiting (for permits and retries of the model) that the
            deadline does not count.
        max_token_length: Budget of the sequence, in tokens.
        max_cost_usd: Cost limit of the run.
        max_invalid_calls: Turns in a row with malformed calls only.
        max_calls_per_turn: Calls of one turn that are run; the others are answered with an error.
        parallel_tool_calls: Run neighbouring calls of read-only tools together.
        compact: Called before each model call; a changed history is counted, and forks the
            sequence of a token-exact session. The result keeps the whole conversation.
        seed: Makes sampling reproducible where the server can.
        clock: Seconds, monotonic.

    Attributes:
        result: Of the latest run, filled while it runs; also after a cancelled one.
        failure: The error behind MODEL_ERROR, TOOL_FAULT, SANDBOX_LOST and SANDBOX_BROKEN.

    Raises:
        ConfigError: ``server`` is nothing that can be talked to, or a limit is below 1.
        MissingExtra: There are tools but no dispatcher, and hermes-agent is not installed.
    """

    def __init__(
        self,
        server: ModelSession | ChatModel | SupportsChatCompletion,
        tool_schemas: Sequence[JSONObject],
        valid_tool_names: Collection[str],
        max_turns: int = 30,
        task_id: str | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        extra_body: Mapping[str, Any] | None = None,
        *,
        tools: Dispatcher | None = None,
        deadline_s: float | None = None,
        waiting_allowance_s: float = 0.0,
        max_token_length: int | None = None,
        max_cost_usd: float | None = None,
        max_invalid_calls: int = 3,
        max_calls_per_turn: int = MAX_CALLS_PER_TURN,
        parallel_tool_calls: bool = False,
        compact: Compact | None = None,
        seed: int | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        if min(max_turns, max_invalid_calls, max_calls_per_turn) < 1:
            raise ConfigError(
                "max_turns, max_invalid_calls and max_calls_per_turn must be at least 1."
            )
        self._session, self._model = _session_or_model(server)
        self._schemas = tuple(tool_schemas)
        self._sampling = Sampling(
            temperature=temperature,
            max_tokens_per_turn=max_tokens,
            max_token_length=max_token_length,
            extra_body=extra_body or {},
        )
        self._seed = seed
        self._limits = AgentLimits(
            max_turns=max_turns,
            max_token_length=max_token_length,
            max_cost_usd=max_cost_usd,
            max_invalid_calls=max_invalid_calls,
        )
        if tools is None and valid_tool_names:
            tools = _legacy_tools(valid_tool_names, task_id)
        self._deadline_s = deadline_s
        self._allowance_s = waiting_allowance_s
        self._calls = CallRunner(
            tools,
            valid_tool_names,
            parallel=parallel_tool_calls,
            max_calls=max_calls_per_turn,
            clock=clock,
        )
        self._compact = compact
        self._clock = clock
        self.result: AgentResult | None = None
        self.failure: HermesRLError | None = None

    async def run(self, messages: list[Message]) -> AgentResult:
        """Run to a stop. Appends to ``messages`` and returns the same list in the result.

        Cancelling cuts off the call in flight, leaves ``self.result`` complete up to there
        (``stop_reason`` CANCELLED) and raises as usual.

        Raises:
            ConfigError: The model cannot be used as configured.
        """
        self.failure = None
        self.result = result = AgentResult(messages)
        deadline = WorkDeadline(self._deadline_s, allowance_s=self._allowance_s, clock=self._clock)
        conversation = Conversation(
            self._limits, self._calls, deadline, self._compact, self._clock, result
        )
        reason: StopReason | None = None
        try:
            with deadline.running():
                async with self._open_session() as session:
                    try:
                        reason = await conversation.run(session)
                    finally:
                        _keep_sequences(session, result)
            reason = reason or StopReason.WALL_CLOCK
            if reason is StopReason.WALL_CLOCK:
                _check_waiting(deadline)
        except (ModelError, SandboxError, ToolFault) as error:
            self.failure, result.error = error, str(error)
            reason = _reason_of(error)
        except anyio.get_cancelled_exc_class():
            reason = StopReason.CANCELLED
            raise
        except Exception as error:  # of a model object that is not ours, or of the task's compact
            reason, result.error = StopReason.MODEL_ERROR, failure_text(error)
            raise
        finally:
            result.stop_reason = reason or StopReason.CANCELLED
            result.finished_naturally = reason is StopReason.FINISHED
        return result

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[ModelSession]:
        if self._session is not None:
            yield self._session
        elif self._model is not None:
            async with self._model.session(
                tools=self._schemas, sampling=self._sampling, seed=self._seed
            ) as session:
                yield session


def _check_waiting(deadline: WorkDeadline) -> None:
    """Raise if a run met its deadline because it was kept waiting."""
    if deadline.unforgiven_s > 0:
        raise ModelTransient(
            f"The model kept this rollout waiting for {deadline.waited_s:.0f} s (permits and "
            f"retries), {deadline.unforgiven_s:.0f} s longer than its deadline allows for. Run "
            "fewer rollouts at once."
        )


def _reason_of(error: HermesRLError) -> StopReason:
    if isinstance(error, ModelError):
        return StopReason.MODEL_ERROR
    if isinstance(error, ToolFault):
        return StopReason.TOOL_FAULT
    by_agent = isinstance(error, SandboxGone) and error.by_agent
    return StopReason.SANDBOX_BROKEN if by_agent else StopReason.SANDBOX_LOST


def _keep_sequences(session: ModelSession, result: AgentResult) -> None:
    """Put the exact token sequences, if the session has any, where trainers look for them."""
    forks: int = getattr(session, "forks", 0)
    if forks:
        count(result, "forks", forks)
    sequences = session.sequences
    if sequences:
        result.managed_state = {
            "nodes": [
                {
                    "tokens": sequence.tokens,
                    "masked_tokens": sequence.masked_tokens,
                    "logprobs": sequence.logprobs,
                    "metadata": sequence.metadata,
                }
                for sequence in sequences
            ]
        }


def _session_or_model(
    server: ModelSession | ChatModel | SupportsChatCompletion,
) -> tuple[ModelSession | None, ChatModel | None]:
    """Return ``server`` as the one or the other; an unknown object goes through the adapter."""
    if hasattr(server, "complete"):
        return cast(ModelSession, server), None
    if isinstance(server, ChatModel):
        return None, server
    if hasattr(server, "chat_completion"):
        # Not at the top: it brings the HTTP stack, which no other kind of server needs.
        from hermes_rl.model.adapter import ChatCompletionModel

        return None, ChatCompletionModel(server)
    raise ConfigError(
        f"{type(server).__name__} cannot be used as a server: give a ModelSession, a ChatModel, "
        "or an object with an async method chat_completion(**kwargs)."
    )


def _legacy_tools(names: Collection[str], task_id: str | None) -> Dispatcher:
    # Not at the top: only a loop without tools of its own needs it.
    from hermes_rl.legacy.dispatcher import legacy_dispatcher

    return legacy_dispatcher(names, task_id)
