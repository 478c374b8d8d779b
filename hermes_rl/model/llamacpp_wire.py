"""Requests and answers of llama.cpp's server; the facts are in :mod:`hermes_rl.model.llamacpp`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from hermes_rl.errors import ModelProtocolError
from hermes_rl.model.long_reply import LongArray, TokenLogprobs, floats, ints
from hermes_rl.model.sample import Finish
from hermes_rl.model.wire import valid_unicode
from hermes_rl.packed import Packed
from hermes_rl.types import JSONObject

__all__ = [
    "FINISH",
    "LONG_ARRAYS",
    "REPLY",
    "SAMPLERS",
    "encoded",
    "listed_logprob",
    "read_ids",
    "read_logprobs",
]

SAMPLERS: Mapping[str, Any] = {
    "samplers": ["temperature", "top_p"],
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "logit_bias": [],
    "ignore_eos": False,
    "stop": [],
}
REPLY = {
    "n_probs": 1,
    "return_tokens": True,
    "post_sampling_probs": False,
    "stream": False,
    "cache_prompt": True,
    "response_fields": [
        "tokens",
        "completion_probabilities",
        "stop_type",
        "truncated",
        "tokens_evaluated",
        "timings/cache_n",
    ],
}
_OTHER_TOKENS = "The server's log-probabilities are not those of its tokens."
FINISH: Mapping[object, Finish] = {"eos": "stop", "limit": "length"}


def _entries(entries: Sequence[Mapping[str, Any]]) -> TokenLogprobs:
    return TokenLogprobs(ints([e["id"] for e in entries]), floats([e["logprob"] for e in entries]))


LONG_ARRAYS = (
    LongArray(key=b'"tokens":', read=ints),
    LongArray(
        key=b'"completion_probabilities":',
        tail=b"]}",
        head=b'{"id":',
        after=b',"stop_type":',
        read=_entries,
    ),
)
"""What grows with the tokens in a reply."""


def encoded(fields: JSONObject) -> bytes:
    """Return a request's body; packed numbers become lists in it."""
    try:
        return orjson.dumps(fields, default=_listed)
    except TypeError:  # Lone surrogates, which no tokenizer could read.
        return orjson.dumps(valid_unicode(fields), default=_listed)


def _listed(value: object) -> list[int]:
    if isinstance(value, Packed):
        return value.tolist()
    raise TypeError


def read_ids(reply: JSONObject) -> Sequence[int]:
    """Return the token ids of an answer.

    Raises:
        ModelProtocolError: It has none.
    """
    ids = reply.get("tokens")
    if isinstance(ids, Packed):
        return ids
    if not isinstance(ids, list) or set(map(type, ids)) - {int}:
        raise ModelProtocolError("The server gave no token ids; is it llama.cpp?")
    return ids


def read_logprobs(reply: JSONObject, ids: Sequence[int]) -> Sequence[float] | None:
    """Return one log-probability per id, None if the server left some out.

    Raises:
        ModelProtocolError: They are those of other ids.
    """
    entries = reply.get("completion_probabilities") or []
    if isinstance(entries, TokenLogprobs):
        if len(entries.ids) != len(ids):
            return None
        if entries.ids != ids:
            raise ModelProtocolError(_OTHER_TOKENS)
        return entries.logprobs
    if len(entries) != len(ids):
        return None
    if any(entry["id"] != token_id for entry, token_id in zip(entries, ids, strict=True)):
        raise ModelProtocolError(_OTHER_TOKENS)
    return [float(entry["logprob"]) for entry in entries]


def listed_logprob(body: bytes, token_id: int) -> float | None:
    """Find a token in ``top_logprobs`` without decoding what may be megabytes."""
    start = body.find(b'"top_logprobs"')
    entry = body.find(b'{"id":%d,' % token_id, start)
    if start < 0 or entry < 0:
        return None
    key = b'"logprob":'
    value = body.find(key, entry) + len(key)
    end = min(found for found in (body.find(b",", value), body.find(b"}", value)) if found > 0)
    return float(body[value:end])
