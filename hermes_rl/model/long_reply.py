"""Replies with thousands of tokens, decoded in steps: none keeps the event loop for long.

Decoding the 6 MB that vLLM answers with for 65,536 tokens takes 32 ms, and no thread helps because
the decoder holds the interpreter lock. So the long arrays are decoded slice by slice, with a
checkpoint after each, and only what is around them at once.

They are found by bytes that mean the same wherever they stand: every quote inside a text is
escaped, so ``"token_ids":[`` is a key and its array. Whatever turns out not to be as described
here is decoded at once, like a short reply.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio.lowlevel
import orjson

from hermes_rl.errors import ModelProtocolError
from hermes_rl.packed import Packed, packed_floats, packed_ints
from hermes_rl.types import JSONObject

__all__ = [
    "LONG_REPLY_BYTES",
    "LongArray",
    "TokenLogprobs",
    "floats",
    "ints",
    "json_object",
    "read_reply",
]

T = TypeVar("T")
LONG_REPLY_BYTES = 256 * 1024
"""Shorter replies are decoded at once: 0.7 ms."""
SLICE_BYTES = 128 * 1024
"""Decoded between two steps of the event loop: 1 ms."""


@dataclass(slots=True, frozen=True)
class TokenLogprobs:
    """Log-probabilities of tokens, and of which.

    Attributes:
        ids: Tokens.
        logprobs: One for each.
    """

    ids: Packed[int]
    logprobs: Packed[float]

    def __add__(self, other: TokenLogprobs) -> TokenLogprobs:
        """Return these followed by others."""
        return TokenLogprobs(self.ids + other.ids, self.logprobs + other.logprobs)


@dataclass(slots=True, frozen=True, kw_only=True)
class LongArray:
    """An array of a reply that grows with the tokens.

    Attributes:
        key: With its quotes and colon.
        tail: How an entry ends.
        head: How the next one begins, behind the comma.
        after: What follows the array, if it takes that to tell its end from an entry's.
        read: Reads some entries into something that can be added up; may raise anything that is
            wrong with a value. None = what is there, up to ``after``, is not wanted: it is null.
    """

    key: bytes
    tail: bytes = b""
    head: bytes = b""
    after: bytes = b""
    read: Callable[[list[Any]], Any] | None = None

    @property
    def begin(self) -> bytes:
        """What is looked for."""
        return self.key + b"["

    @property
    def end(self) -> bytes:
        """What its last entry, it and what is behind it end with."""
        return self.tail + b"]" + self.after

    @property
    def between(self) -> bytes:
        """What is between two entries."""
        return self.tail + b"," + self.head


def ints(entries: Sequence[Any]) -> Packed[int]:
    """Read token ids.

    Raises:
        TypeError: One is no integer.
        OverflowError: One has more than 31 bits.
    """
    if set(map(type, entries)) - {int}:
        raise TypeError
    return packed_ints(entries)


def floats(entries: Sequence[Any]) -> Packed[float]:
    """Read log-probabilities.

    Raises:
        TypeError: One is no number.
    """
    if set(map(type, entries)) - {int, float}:
        raise TypeError
    return packed_floats(entries)


def json_object(body: bytes, server: str) -> JSONObject:
    """Decode a reply; raises ModelProtocolError if it is no object."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        data = None
    if not isinstance(data, dict):
        raise ModelProtocolError(f"{server} gave no JSON object.", status=200)
    return data


async def read_reply(
    body: bytes, arrays: Sequence[LongArray], read: Callable[[JSONObject], T], *, server: str
) -> T:
    """Return what ``read`` makes of a reply; of a long one ``arrays`` are decoded in steps.

    Args:
        body: The reply.
        arrays: In them ``read`` finds what their own readers made.
        read: Raises ModelProtocolError for a reply that it cannot read.
        server: For messages.

    Raises:
        ModelProtocolError: It is no JSON object.
        Exception: As ``read`` does.
    """
    if len(body) >= LONG_REPLY_BYTES:
        with suppress(ModelProtocolError, LookupError, TypeError, ValueError, OverflowError):
            rest, values = await _Cutter(body, arrays).cut()
            reply: JSONObject = _filled(json_object(rest, server), values)
            return read(reply)
    return read(json_object(body, server))


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Return JSON with the long arrays where their names stand."""
    if isinstance(value, dict):
        return {key: _filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    return values.get(value, value) if isinstance(value, str) else value


class _Cutter:
    """Takes the long arrays out of one reply."""

    def __init__(self, body: bytes, arrays: Sequence[LongArray]) -> None:
        self._body = body
        self._arrays = arrays
        self._longest = max(len(array.begin) for array in arrays)

    async def cut(self) -> tuple[bytes, dict[str, Any]]:
        """Return the reply with names in the place of its long arrays, and these by name.

        Raises:
            ValueError: It is not as described, or no JSON.
            LookupError, TypeError, OverflowError: As readers do.
        """
        rest: list[bytes] = []
        values: dict[str, Any] = {}
        mark, done = secrets.token_hex(), 0
        while (found := await self._next(done)) is not None:
            place, array = found
            value, end = await self._taken(place + len(array.begin), array)
            name = f"{mark}{len(values)}"
            values[name] = value
            rest.append(b'%b%b"%b"' % (self._body[done:place], array.key, name.encode()))
            done = end
        return b"".join([*rest, self._body[done:]]), values

    async def _next(self, done: int) -> tuple[int, LongArray] | None:
        """Find where the next array begins."""
        for start in range(done, len(self._body), SLICE_BYTES):
            reach = start + SLICE_BYTES + self._longest
            places = {self._body.find(a.begin, start, reach): a for a in self._arrays}
            if first := min((place for place in places if place >= 0), default=None):
                return first, places[first]
            await anyio.lowlevel.checkpoint()
        return None

    async def _taken(self, start: int, array: LongArray) -> tuple[Any, int]:
        """Return what is read of an array, and the place behind it."""
        value: Any = None
        while start < len(self._body):
            reach = start + SLICE_BYTES
            end = self._body.find(array.end, start, reach + len(array.end))
            if end >= 0:
                behind = end + len(array.tail)
                return self._sum(value, array, start, behind), behind + 1
            cut = self._cut(array, start, reach)
            value = self._sum(value, array, start, cut)
            start = cut + (array.read is not None)
            await anyio.lowlevel.checkpoint()
        raise ValueError

    def _cut(self, array: LongArray, start: int, reach: int) -> int:
        if array.read is None:
            return reach
        return self._body.rindex(array.between, start, reach) + len(array.tail)

    def _sum(self, value: Any, array: LongArray, start: int, end: int) -> Any:
        """Add what is between two places to what was read before them."""
        if array.read is None:
            return None
        more = array.read(orjson.loads(b"[%b]" % self._body[start:end]))
        return more if value is None else value + more
