"""JSON of scored groups, made in pieces so that the event loop never stops for long.

A group of 8 sequences of 32,768 tokens is 10-20 MB of JSON. Encoded at once that blocks the loop
for over 100 ms, and a thread does not help because the encoder holds the interpreter lock. So
it is encoded piece by piece, with a checkpoint after each part, and only the compression (which
releases the lock) goes to a thread.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import orjson

from hermes_rl.loop_limiter import LoopLimiter
from hermes_rl.packed import Packed

__all__ = ["COMPRESS_FROM_BYTES", "compress", "encode_parts"]

COMPRESS_FROM_BYTES = 4096
"""Smaller bodies are sent as they are; loopback and LAN gain nothing from packing them."""
PIECE_ITEMS = 8192
"""Numbers per piece: about 0.2 ms of encoding."""
PART_BYTES = 128 * 1024
"""JSON made before the event loop gets a turn: 0.2 ms of numbers, 1 ms of the shortest values."""
_LEAST_PIECE_BYTES = 64
"""What the shortest piece counts for: making it takes as long."""
_GZIP_HEADER = 16
"""zlib's flag for the gzip format."""
_compressing = LoopLimiter(2)
"""Threads that compress; more would only compete for the cores of the rollouts."""


def _pieces(value: Any) -> Iterator[bytes]:
    """Yield the JSON of ``value``; objects, lists of lists and long lists come in pieces."""
    if isinstance(value, Mapping):
        yield b"{"
        for index, (key, item) in enumerate(value.items()):
            yield (b"," if index else b"") + orjson.dumps(str(key)) + b":"
            yield from _pieces(item)
        yield b"}"
    elif isinstance(value, Packed):
        yield from _numbers(value)
    elif isinstance(value, list) and value and isinstance(value[0], list | dict | Packed):
        yield b"["
        for index, item in enumerate(value):
            if index:
                yield b","
            yield from _pieces(item)
        yield b"]"
    elif isinstance(value, list) and len(value) > PIECE_ITEMS:
        yield from _numbers(value)
    else:
        yield orjson.dumps(value)


def _numbers(values: Sequence[Any]) -> Iterator[bytes]:
    yield b"["
    for start in range(0, len(values), PIECE_ITEMS):
        part = values[start : start + PIECE_ITEMS]
        plain = part.tolist() if isinstance(part, Packed) else part
        yield (b"," if start else b"") + orjson.dumps(plain)[1:-1]
    yield b"]"


def _group_pieces(group: Mapping[str, Any]) -> Iterator[bytes]:
    yield b"{"
    for index, (key, value) in enumerate(group.items()):
        yield (b"," if index else b"") + orjson.dumps(key) + b":"
        try:
            yield from _pieces(value)
        except TypeError as error:
            raise TypeError(f"group[{key!r}] is not plain JSON: {error}") from error
    yield b"}"


async def encode_parts(group: Mapping[str, Any]) -> list[bytes]:
    """Return the JSON of a scored group as parts to be joined.

    Args:
        group: Keys of Atropos' ``ScoredDataGroup``; plain Python values and packed numbers only.

    Raises:
        TypeError: A value is no plain JSON value, e.g. a numpy scalar; names the key.
    """
    parts: list[bytes] = []
    pieces: list[bytes] = []
    size = 0
    for piece in _group_pieces(group):
        pieces.append(piece)
        size += max(len(piece), _LEAST_PIECE_BYTES)
        if size >= PART_BYTES:
            parts.append(b"".join(pieces))
            pieces, size = [], 0
            await anyio.lowlevel.checkpoint()
    parts.append(b"".join(pieces))
    return parts


async def compress(parts: Sequence[bytes]) -> bytes:
    """Return the parts gzipped at level 1, in a thread; level 9 costs ten times as much.

    The parts are never joined: a copy of 10 MB alone would hold the loop for milliseconds.
    """
    return await anyio.to_thread.run_sync(_gzip, parts, limiter=_compressing)


def _gzip(parts: Iterable[bytes]) -> bytes:
    packer = zlib.compressobj(level=1, wbits=zlib.MAX_WBITS | _GZIP_HEADER)
    return b"".join([*map(packer.compress, parts), packer.flush()])
