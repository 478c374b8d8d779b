"""Long replies of token servers: what comes out is what decoding them at once gives."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import anyio.lowlevel
import orjson
import pytest

from hermes_rl.errors import ModelError, ModelProtocolError
from hermes_rl.model.llamacpp_wire import LONG_ARRAYS, read_ids, read_logprobs
from hermes_rl.model.long_reply import LONG_REPLY_BYTES, LongArray, read_reply
from hermes_rl.model.sample import Sample
from hermes_rl.model.sglang import SGLangServer
from hermes_rl.model.stock_server import Served
from hermes_rl.model.vllm import VLLMServer
from hermes_rl.packed import Packed
from hermes_rl.testing.loop_monitor import run_without_long_callbacks
from hermes_rl.types import JSONObject

MANY = 8_000
SERVED = Served(name="tiny", tokenizer="none", context_tokens=1 << 20)
VLLM = VLLMServer(None, SERVED)  # type: ignore[arg-type] # nothing is sent
SGLANG = SGLangServer(None, SERVED)  # type: ignore[arg-type]
ODD = [
    'a"token_ids":[1,2]',
    '"tokens":["x"],"top_logprobs":[',
    ']},"finish_reason":"stop","token_ids":[7],',
    '}]},{"id":',
    ']}],"stop_type":"eos"',
    '"completion_probabilities":[{"id":1}]}',
    "]],[",
    "\\",
    '\\"',
    '"',
    "],",
    "é\u2028😀",
    "\n\t\x00",
]
"""Texts of tokens: everything that is looked for, and what quotes and escapes it."""


def drawn(count: int) -> tuple[list[int], list[float], list[str]]:
    """Ids, log-probabilities and texts."""
    source = random.Random(count)
    ids = [source.randrange(1 << 17) for _ in range(count)]
    logprobs = [-source.expovariate(1.0) for _ in ids]
    return ids, logprobs, [ODD[n % len(ODD)] if n % 3 else f"word{n}" for n in range(count)]


def of_vllm(count: int) -> JSONObject:
    ids, logprobs, texts = drawn(count)
    pairs = zip(texts, logprobs, strict=True)
    given = {
        "text_offset": list(range(count)),
        "token_logprobs": logprobs,
        "tokens": texts,
        "top_logprobs": [{text: logprob} for text, logprob in pairs],
    }
    choice = {
        "index": 0,
        "text": "".join(texts),
        "logprobs": given,
        "finish_reason": "stop",
        "token_ids": ids,
        "prompt_logprobs": None,
        "prompt_token_ids": ids[::-1],
    }
    return {"id": "x", "choices": [choice], "usage": {"prompt_tokens_details": None}}


def of_sglang(count: int) -> JSONObject:
    ids, logprobs, texts = drawn(count)
    pairs = zip(logprobs, ids, strict=True)
    meta = {
        "finish_reason": {"type": "length", "length": count},
        "input_token_logprobs": [],
        "output_token_logprobs": [[logprob, token_id, None] for logprob, token_id in pairs],
        "weight_version": "3",
        "cached_tokens": 7,
    }
    return {
        "text": "".join(texts),
        "output_ids": ids,
        "meta_info": meta,
        "prompt_token_ids": ids[::-1],
    }


def of_llamacpp(count: int) -> JSONObject:
    ids, logprobs, texts = drawn(count)

    def entry(token_id: int, logprob: float, text: str) -> JSONObject:
        named = {"id": token_id, "token": text, "bytes": [*text.encode()], "logprob": logprob}
        return {**named, "top_logprobs": [named] if token_id % 2 else []}

    return {
        "tokens": ids,
        "completion_probabilities": [*map(entry, ids, logprobs, texts)],
        "stop_type": "eos",
        "truncated": False,
        "tokens_evaluated": 5,
    }


def read_llamacpp(reply: JSONObject) -> Sample:
    ids = read_ids(reply)
    logprobs = read_logprobs(reply, ids)
    if logprobs is None:
        raise ModelProtocolError("left out")
    return Sample(ids=ids, logprobs=logprobs, finish="stop")


Read = Callable[[JSONObject], Sample]
SERVERS: dict[str, tuple[Callable[[int], JSONObject], Read, Sequence[LongArray]]] = {
    "vllm": (of_vllm, VLLM.read, VLLM.long_arrays),
    "sglang": (of_sglang, SGLANG.read, SGLANG.long_arrays),
    "llamacpp": (of_llamacpp, read_llamacpp, LONG_ARRAYS),
}
by_server = pytest.mark.parametrize("server", SERVERS)


class Counted:
    """A reader that says how often it read, and what long arrays it got."""

    def __init__(self, read: Read) -> None:
        self.calls = 0
        self.packed = False
        self._read = read

    def __call__(self, reply: JSONObject) -> Sample:
        self.calls += 1
        self.packed = "Packed(" in repr(reply)
        return self._read(reply)


@by_server
@pytest.mark.parametrize("count", [100, 4_001, MANY])
async def test_every_number_is_what_decoding_at_once_gives(server: str, count: int) -> None:
    make, read, arrays = SERVERS[server]
    body = orjson.dumps(make(count))
    assert len(body) > LONG_REPLY_BYTES or count < MANY
    counted = Counted(read)
    assert await read_reply(body, arrays, counted, server="x") == read(orjson.loads(body))
    assert (counted.calls, counted.packed) == (1, len(body) >= LONG_REPLY_BYTES)


@by_server
async def test_a_reply_that_is_written_otherwise_is_read_as_well(server: str) -> None:
    make, read, arrays = SERVERS[server]
    reply = make(MANY)
    sample = read(reply)
    for spaced in (json.dumps(reply), json.dumps(reply, indent=1), json.dumps(turned(reply))):
        assert await read_reply(spaced.encode(), arrays, read, server="x") == sample
    backwards = orjson.dumps(turned(reply))
    assert await read_reply(backwards, arrays, read, server="x") == sample


def turned(value: Any) -> Any:
    """JSON with the keys of every object in the other order."""
    if isinstance(value, dict):
        return {key: turned(item) for key, item in reversed(value.items())}
    return [turned(item) for item in value] if isinstance(value, list) else value


SPOILT = {
    "vllm": [
        (b'"token_ids":[', b'"token_ids":[true,'),
        (b'"token_ids":[', b'"token_ids":[99999999999,'),
        (b'"token_ids":[', b'"token_ids":["]",'),
        (b'"token_ids":[', b'"token_ids":[[1],'),
        (b'"prompt_token_ids":[', b'"prompt_token_ids":[1.5,'),
        (b'"token_logprobs":[', b'"token_logprobs":[null,'),
        (b'"token_logprobs":[', b'"token_logprobs":[-9999.0,'),
        (b'"token_logprobs":[', b'"token_logprobs":[0.5,'),
        (b'"token_logprobs":[', b'"token_logprobs":[-1.0,'),
        (b'"choices":[', b'"choices":[],"others":['),
        (b'"finish_reason":"stop"', b'"finish_reason":"abort"'),
        (b'"usage"', b'usage"'),
    ],
    "sglang": [
        (b'"output_ids":[', b'"output_ids":[1,'),
        (b'"output_token_logprobs":[', b'"output_token_logprobs":[[-1,5,null],'),
        (b'"output_token_logprobs":[', b'"output_token_logprobs":[5,'),
        (b'"output_token_logprobs":[', b'"output_token_logprobs":[[1],'),
        (b'"output_token_logprobs":[', b'"output_token_logprobs":[],"other":['),
        (b'"output_token_logprobs":[[', b'"output_token_logprobs":[["]],[",'),
        (b'"type":"length"', b'"type":"abort"'),
        (b'"text"', b"text"),
    ],
    "llamacpp": [
        (b'"tokens":[', b'"tokens":[1,'),
        (b'"tokens":[', b'"tokens":[null,'),
        (b'"completion_probabilities":[', b'"completion_probabilities":[{"id":1,"logprob":-1},'),
        (b'"completion_probabilities":[', b'"completion_probabilities":[],"other":['),
        (b'"completion_probabilities":[{"id":', b'"completion_probabilities":[{"id":9'),
        (b'"stop_type"', b'"stop_typ"'),
        (b'"truncated":false', b'"truncated":flse'),
    ],
}


async def outcome_of(read: Callable[[], Any]) -> object:
    try:
        return await read()
    except ModelError as error:
        return type(error), str(error)


@pytest.mark.parametrize(
    ("server", "old", "new"),
    [(server, old, new) for server, changes in SPOILT.items() for old, new in changes],
)
async def test_what_is_wrong_has_the_same_outcome_as_in_a_reply_decoded_at_once(
    server: str, old: bytes, new: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, read, arrays = SERVERS[server]
    whole = orjson.dumps(make(MANY))
    assert old in whole
    body = whole.replace(old, new, 1)
    long = await outcome_of(lambda: read_reply(body, arrays, read, server="x"))
    monkeypatch.setattr("hermes_rl.model.long_reply.LONG_REPLY_BYTES", len(body) + 1)
    assert long == await outcome_of(lambda: read_reply(body, arrays, read, server="x"))


@by_server
async def test_a_reply_that_is_cut_off_is_an_error(server: str) -> None:
    make, read, arrays = SERVERS[server]
    body = orjson.dumps(make(MANY))
    for length in (len(body) - 1, len(body) // 2, LONG_REPLY_BYTES + 1):
        with pytest.raises(ModelProtocolError, match="gave no JSON object"):
            await read_reply(body[:length], arrays, read, server="x")


@by_server
async def test_65536_tokens_do_not_block_the_event_loop(server: str) -> None:
    make, read, arrays = SERVERS[server]
    body = orjson.dumps(make(65_536))

    async def work() -> Sample:
        await anyio.lowlevel.checkpoint()
        return await read_reply(body, arrays, read, server="x")

    sample = await run_without_long_callbacks(work)
    assert isinstance(sample.ids, Packed)
    assert len(sample.ids) == len(sample.logprobs) == 65_536
