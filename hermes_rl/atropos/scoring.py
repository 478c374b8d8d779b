"""From a finished rollout to the sequence a trainer gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import anyio
import anyio.to_thread

from hermes_rl.atropos.groups import ForkPolicy, ScoredSequence, choose_sequence, sequences_of
from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.results import RolloutResult
from hermes_rl.types import JSONObject, Message

__all__ = ["Tokenizer", "approximate_tokens", "scored_sequence"]

_tokenizing = LoopLimiter(2)
"""Threads that tokenise; the tokenizer's own work releases the interpreter lock."""
_IGNORED = -100


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used."""

    def apply_chat_template(self, conversation: list[Message], **options: Any) -> Any:
        """Render a conversation."""
        ...

    def encode(self, text: str, **options: Any) -> list[int]:
        """Return the ids of ``text``."""
        ...


def approximate_tokens(
    tokenizer: Tokenizer, messages: Sequence[Message]
) -> tuple[list[int], list[int]]:
    """Tokenise a conversation afresh; what the model really saw may differ.

    Returns:
        Token ids, and the same with -100 outside the assistant's turns.
    """
    tokens: list[int] = []
    masks: list[int] = []
    done = ""
    for end in range(1, len(messages) + 1):
        text = tokenizer.apply_chat_template(list(messages[:end]), tokenize=False)
        if not text.startswith(done):
            # The template changes what came before; only the whole can be tokenised, unmasked.
            whole = tokenizer.apply_chat_template(list(messages), tokenize=False)
            ids = tokenizer.encode(whole, add_special_tokens=False)
            return ids, [_IGNORED] * len(ids)
        ids = tokenizer.encode(text[len(done) :], add_special_tokens=False)
        tokens += ids
        is_sampled = messages[end - 1]["role"] == "assistant"
        masks += ids if is_sampled else [_IGNORED] * len(ids)
        done = text
    return tokens, masks


def _exact(result: RolloutResult, policy: ForkPolicy) -> ScoredSequence | None:
    assert result.agent is not None
    sequences = sequences_of(result.agent.managed_state)
    chosen, left_out = choose_sequence(sequences, policy)
    if chosen is None:
        return None
    overrides: JSONObject = {
        key: value
        for key, value in chosen.metadata.items()
        if key in ("weight_versions", "weight_version", "logprob_mode", "finish_reason")
    }
    if len(sequences) > 1:
        overrides |= {"segments": len(sequences), "sampled_tokens_left_out": left_out}
    return ScoredSequence(
        tokens=chosen.tokens,
        masks=chosen.masked_tokens,
        logprobs=chosen.logprobs,
        score=result.score,
        messages=result.agent.messages,
        overrides=overrides,
        left_out=left_out,
    )


async def scored_sequence(
    result: RolloutResult, *, policy: ForkPolicy, tokenizer: Tokenizer | None = None
) -> ScoredSequence | None:
    """Return a finished rollout as a trainer sees it.

    Exact tokens where the model client has them. Else, with a ``tokenizer``, tokens made afresh
    and marked ``approximate`` in ``overrides``; without one, empty lists.

    Returns:
        None if ``policy`` drops the rollout because it was forked.
    """
    assert result.agent is not None
    if result.agent.managed_state is not None:
        return _exact(result, policy)
    tokens: list[int] = []
    masks: list[int] = []
    overrides: JSONObject = {}
    if tokenizer is not None:
        tokens, masks = await anyio.to_thread.run_sync(
            approximate_tokens, tokenizer, result.agent.messages, limiter=_tokenizing
        )
        overrides = {"approximate": True}
    return ScoredSequence(
        tokens=tokens,
        masks=masks,
        logprobs=None,
        score=result.score,
        messages=result.agent.messages,
        overrides=overrides,
    )
