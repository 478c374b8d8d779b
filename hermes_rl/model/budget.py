"""How many tokens the next completion of a rollout may have.

Three bounds: ``max_tokens_per_turn``; what is left of ``max_token_length``, the budget of the whole
sequence, prompt included; and what is left of the model's context. The next prompt's length is
estimated: what the server counted last time, plus the bytes added since at the session's own rate
of tokens per byte.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes_rl.model.protocol import Sampling
from hermes_rl.types import StopReason, Usage

__all__ = ["Allowance", "TokenBudget"]

MIN_COMPLETION_TOKENS = 16
"""A budget with less left is exhausted: no tool call and hardly an answer fits."""
FIRST_TOKENS_PER_BYTE = 0.2
"""Before the server counted anything; low, so that the first call is never refused in error."""
TOKENS_PER_BYTE = (0.1, 1.0)
"""Bounds of the measured rate (a long run of spaces; single bytes)."""
CONTEXT_MARGIN = 0.01
"""Share of the context kept free, for the error of the estimate."""


@dataclass(slots=True, frozen=True)
class Allowance:
    """The bound of one completion.

    Attributes:
        max_tokens: None = send none.
        stop: What it means when the completion is cut at ``max_tokens``; None = just a long turn.
    """

    max_tokens: int | None = None
    stop: StopReason | None = None


class TokenBudget:
    """Follows one session's sequence.

    Attributes:
        prompt_bytes: Encoded messages and tools of the prompt being asked; set before each call.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._per_turn = sampling.max_tokens_per_turn
        self._sequence = sampling.max_token_length
        self.prompt_bytes = 0
        self._rate = FIRST_TOKENS_PER_BYTE
        self._counted_tokens = 0
        self._counted_bytes = 0
        self._completion_tokens = 0

    def estimate(self) -> int:
        """Return the prompt's tokens."""
        added = max(0, self.prompt_bytes - self._counted_bytes)
        return self._counted_tokens + max(self._completion_tokens, int(added * self._rate))

    def allowance(self, context_tokens: int | None) -> Allowance | None:
        """Return the bound of the next completion, None if the sequence budget is exhausted.

        Args:
            context_tokens: The model's context, if known.
        """
        prompt = self.estimate()
        chosen = Allowance(self._per_turn)
        if self._sequence is not None:
            left = self._sequence - prompt
            if left < MIN_COMPLETION_TOKENS:
                return None
            chosen = _tighter(chosen, left, StopReason.TOKEN_LIMIT)
        if context_tokens is not None and chosen.max_tokens is not None:
            # A full context is the server's to refuse: it knows the prompt's true length.
            room = int(context_tokens * (1 - CONTEXT_MARGIN)) - prompt
            chosen = _tighter(chosen, max(room, MIN_COMPLETION_TOKENS), StopReason.CONTEXT_LENGTH)
        return chosen

    def shrunk(self, *, context_tokens: int | None, prompt_tokens: int | None) -> Allowance | None:
        """Return the bound to try after the server said that prompt and completion do not fit.

        None if there is no room for a completion or the context's size is unknown. Servers may
        count a too long prompt only up to what they would accept, so our estimate counts too.
        """
        if context_tokens is None:
            return None
        prompt = max(prompt_tokens or 0, self.estimate())
        room = context_tokens - prompt - max(1, int(context_tokens * CONTEXT_MARGIN))
        if room < MIN_COMPLETION_TOKENS:
            return None
        return Allowance(room, StopReason.CONTEXT_LENGTH)

    def record(self, usage: Usage) -> None:
        """Take over what the server counted for the prompt just asked.

        A server that counts nothing leaves the estimate as it is.
        """
        if usage.prompt_tokens <= 0:
            return
        low, high = TOKENS_PER_BYTE
        self._rate = min(max(usage.prompt_tokens / max(self.prompt_bytes, 1), low), high)
        self._counted_tokens = usage.prompt_tokens
        self._counted_bytes = self.prompt_bytes
        # Reasoning is mostly not sent back; the rest of the completion is in the next prompt.
        self._completion_tokens = max(0, usage.completion_tokens - usage.reasoning_tokens)


def _tighter(current: Allowance, max_tokens: int, stop: StopReason) -> Allowance:
    if current.max_tokens is not None and current.max_tokens <= max_tokens:
        return current
    return Allowance(max_tokens, stop)
