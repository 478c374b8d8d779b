"""Scored groups: what the trajectory API takes, made from finished rollouts.

A group holds exactly one sequence per rollout, because the API keeps a group of any other size
back for ever. A rollout whose conversation was forked has several sequences; ``fork_policy`` says
which one is sent (``longest`` by sampled tokens, ``last``, or ``drop`` the rollout). The sampled
tokens left out are counted, never silently lost.

Keys and shapes: ``tokens``, ``masks`` (-100 where the policy did not sample) and
``inference_logprobs`` (1.0 there) are lists of equally long sequences, one per rollout; ``scores``
a list of floats; ``messages`` a list of conversations whose messages all have ``role`` and
``content``. The long sequences are packed (:mod:`hermes_rl.packed`) wherever a group waits; hooks
of an environment get them as lists (:mod:`hermes_rl.atropos.packing`). Source: ``atroposlib``
0.4.0, ``ScoredDataGroup`` and ``api/server.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_rl.errors import ConfigError
from hermes_rl.types import JSONObject, Message, TokenSequence

__all__ = [
    "ForkPolicy",
    "ScoredSequence",
    "choose_sequence",
    "merge_items",
    "sampled_count",
    "sequences_of",
    "split_group",
    "to_item",
    "wire_messages",
]

ForkPolicy = Literal["longest", "last", "drop"]

_PER_SEQUENCE = ("tokens", "masks", "scores", "inference_logprobs", "messages", "overrides")
_OPTIONAL = ("advantages", "ref_logprobs", "images", "distill_token_ids", "distill_logprobs")


@dataclass(slots=True, frozen=True, kw_only=True)
class ScoredSequence:
    """One rollout as a trainer sees it.

    Attributes:
        tokens: Token ids; empty where none are known.
        masks: The same with -100 for what was not sampled.
        logprobs: Log-probabilities with 1.0 for what was not sampled; None where none are known.
        score: The reward.
        messages: The conversation.
        overrides: Per-sequence remarks for the trainer (``approximate``, weight versions ...).
        group_overrides: Remarks for the whole group.
        left_out: Sampled tokens in other segments of a forked rollout.
    """

    tokens: Sequence[int]
    masks: Sequence[int]
    logprobs: Sequence[float] | None
    score: float
    messages: list[Message]
    overrides: JSONObject = field(default_factory=dict)
    group_overrides: JSONObject = field(default_factory=dict)
    left_out: int = 0


def sequences_of(managed_state: Mapping[str, Any] | None) -> list[TokenSequence]:
    """Return the token sequences in ``AgentResult.managed_state``, [] if there are none."""
    nodes = (managed_state or {}).get("nodes") or []
    return [
        TokenSequence(
            node["tokens"], node["masked_tokens"], node["logprobs"], dict(node["metadata"])
        )
        for node in nodes
    ]


def sampled_count(sequence: TokenSequence) -> int:
    """Return how many tokens of ``sequence`` the policy sampled."""
    return len(sequence.masked_tokens) - sequence.masked_tokens.count(-100)


def choose_sequence(
    sequences: Sequence[TokenSequence], policy: ForkPolicy
) -> tuple[TokenSequence | None, int]:
    """Pick the segment of a rollout that is trained on.

    Returns:
        The segment (None if there is none, or the policy drops a forked rollout) and the number
        of sampled tokens in the segments left out.
    """
    if not sequences:
        return None, 0
    sampled = list(map(sampled_count, sequences))
    if len(sequences) > 1 and policy == "drop":
        return None, sum(sampled)
    index = len(sequences) - 1 if policy == "last" else sampled.index(max(sampled))
    return sequences[index], sum(sampled) - sampled[index]


def wire_messages(messages: Sequence[Message]) -> list[Message]:
    """Return messages as the API accepts them: every one has ``role`` and ``content``."""
    return [
        message if "content" in message else {**message, "content": None} for message in messages
    ]


def to_item(sequence: ScoredSequence) -> JSONObject:
    """Return the ``ScoredDataItem`` of one rollout, logprobs included."""
    item: JSONObject = {
        "tokens": sequence.tokens,
        "masks": sequence.masks,
        "scores": float(sequence.score),
        "messages": wire_messages(sequence.messages),
        "overrides": sequence.overrides,
        "group_overrides": sequence.group_overrides,
    }
    if sequence.logprobs is not None:
        item["inference_logprobs"] = sequence.logprobs
    return item


def merge_items(items: Sequence[Mapping[str, Any]]) -> JSONObject:
    """Merge ``ScoredDataItem`` mappings into one group; every list has one entry per item.

    Long sequences stay as they are.

    Raises:
        ConfigError: Only some of the items have an optional key; the lists would not line up.
    """
    group: JSONObject = {
        "tokens": [item["tokens"] for item in items],
        "masks": [item["masks"] for item in items],
        "scores": [float(item["scores"]) for item in items],
        "messages": [wire_messages(item.get("messages") or []) for item in items],
        "overrides": [dict(item.get("overrides") or {}) for item in items],
        "group_overrides": {},
    }
    for item in items:
        group["group_overrides"].update(item.get("group_overrides") or {})
    for key in ("inference_logprobs", *_OPTIONAL):
        values = [item.get(key) for item in items]
        present = [value is not None for value in values]
        if all(present):
            group[key] = values
        elif any(present):
            raise ConfigError(f"Only {sum(present)} of {len(items)} items of a group have {key!r}.")
    return group


def split_group(group: Mapping[str, Any]) -> list[JSONObject]:
    """Return one single-sequence group per sequence, for trajectory rows."""
    size = len(group["tokens"])
    return [
        {
            key: [value[index]]
            if key in (*_PER_SEQUENCE, *_OPTIONAL)
            and isinstance(value, list)
            and len(value) == size
            else value
            for key, value in group.items()
        }
        for index in range(size)
    ]
