"""JSON of scored groups, made in pieces so that the event loop never stops for long.

A group of 8 sequences of 32,768 tokens is 10-20 MB of JSON. Encoded at once that blocks the loop
for over 100 ms, and a thread does not help because the encoder holds the interpreter lock. So
each list is encoded by itself, with a checkpoint between pieces, and only the compression (which
releases the lock) goes to a thread.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
import anyio.to_thread
import orjson

__all__ = ["COMPRESS_FROM_BYTES", "compress", "encode_group", "encode_parts"]

COMPRESS_FROM_BYTES = 4096
"""Smaller bodies are sent as they are; loopback and LAN gain nothing from packing them."""
PIECE_ITEMS = 16_384
"""Numbers per piece: about 1 ms of encoding."""
_GZIP_HEADER = 16
"""zlib's flag for the gzip format."""
_compressing = anyio.CapacityLimiter(2)
"""Threads that compress; more would only compete for the cores of the rollouts."""


def _pieces_of(values: Sequence[Any]) -> list[Sequence[Any]]:
    return [values[start : start + PIECE_ITEMS] for start in range(0, len(values), PIECE_ITEMS)]


async def _encode(value: Any) -> AsyncIterator[bytes]:
    """Yield the JSON of ``value``; lists of lists and long lists come in pieces."""
    if isinstance(value, Mapping):
        yield b"{"
        for index, (key, item) in enumerate(value.items()):
            yield (b"," if index else b"") + orjson.dumps(str(key)) + b":"
            async for piece in _encode(item):
                yield piece
        yield b"}"
    elif isinstance(value, list) and value and isinstance(value[0], list | dict):
        yield b"["
        for index, item in enumerate(value):
            if index:
                yield b","
            async for piece in _encode(item):
                yield piece
        yield b"]"
    elif isinstance(value, list) and len(value) > PIECE_ITEMS:
        for index, part in enumerate(_pieces_of(value)):
            yield (b"," if index else b"[") + orjson.dumps(part)[1:-1]
            await anyio.lowlevel.checkpoint()
        yield b"]"
    else:
        yield orjson.dumps(value)


async def encode_parts(group: Mapping[str, Any]) -> list[bytes]:
    """Return the JSON of a scored group as parts to be joined.

    Args:
        group: Keys of Atropos' ``ScoredDataGroup``; plain Python values only.

    Raises:
        TypeError: A value is no plain JSON value, e.g. a numpy scalar; names the key.
    """
    parts = [b"{"]
    for index, (key, value) in enumerate(group.items()):
        parts.append((b"," if index else b"") + orjson.dumps(key) + b":")
        try:
            parts.extend([piece async for piece in _encode(value)])
        except TypeError as error:
            raise TypeError(f"group[{key!r}] is not plain JSON: {error}") from error
        await anyio.lowlevel.checkpoint()
    parts.append(b"}")
    return parts


async def encode_group(group: Mapping[str, Any]) -> bytes:
    """Return the JSON of a scored group; see :func:`encode_parts`."""
    return b"".join(await encode_parts(group))


async def compress(parts: Sequence[bytes]) -> bytes:
    """Return the parts gzipped at level 1, in a thread; level 9 costs ten times as much.

    The parts are never joined: a copy of 10 MB alone would hold the loop for milliseconds.
    """
    return await anyio.to_thread.run_sync(_gzip, parts, limiter=_compressing)


def _gzip(parts: Sequence[bytes]) -> bytes:
    packer = zlib.compressobj(level=1, wbits=zlib.MAX_WBITS | _GZIP_HEADER)
    return b"".join([*map(packer.compress, parts), packer.flush()])
